"""How many bytes of a worker may be under way at a time: little enough to keep all in step, enough for delay and queues. Pure.

evidence                                               window                           reason
delay makes up DELAY_PART of an iteration              WAY_PART of what the fastest     what workers push all at once does not fit
                                                       node can have on its way         into queues, and shows TCP's recovery
the same with BBR                                      none                             it sends at the rate that it measures, and
                                                                                        a window hides what links could carry
                                                                                        (measured on geo3x4)
workers end computing farther apart than the window    none                             it would hold back those that are ready
and WINDOW_GAIN of the exchange can make up for
else                                                   the usual one                    all servers have sums to answer at any time

trust.py says which iterations have none whatever else is so. Times are in seconds, rates in bytes per second.
"""

# Measured on wan6-static: from 1 MB on nothing is gained, without a window a tenth is lost.
LOW_INFLIGHT_BYTES = 2_000_000
WINDOW_PART = 8  # of the model: each iteration begins with so much at full speed, which also shows what nodes can do
# Measured at 50 to 200 ms, queues of 50 ms: with all that the fastest node can have on its way, or more, packets are lost.
DELAY_PART = 0.05
WAY_PART = 2 / 3
# Of an exchange: what a window makes it shorter at most. It holds back what workers that have computed could push until the slowest
# one has too, but for what fits into it, so it costs up to the time between them (uneven4-both: 4.7 s with one, 3.9 s without).
WINDOW_GAIN = 0.1
# What an iteration takes besides is so many round trips: the first push's way, the last sum's, and TCP's slow start, which all
# connections go through at once (measured with pacing at 100 and 200 ms: 2 to 3).
ROUND_TRIPS = 3


def delay_s(round_trip_s: float) -> float:
    """What an iteration takes besides the time that its links need."""
    return ROUND_TRIPS * round_trip_s


def delay_counts(round_trip_s: float, links_s: float) -> bool:
    """Whether delay makes up much of an iteration whose links need so long."""
    return delay_s(round_trip_s) > DELAY_PART * links_s


def usual_inflight_bytes(model_bytes: int) -> int:
    """Where delay does not count."""
    return max(LOW_INFLIGHT_BYTES, model_bytes // WINDOW_PART)


def window_with_delay(model_bytes: int, round_trip_s: float, fastest: float, is_bbr: bool) -> int:
    """Where delay counts; 0: none. fastest: rate of the fastest node; is_bbr: TCP's congestion control to all that are far."""
    return 0 if is_bbr else max(usual_inflight_bytes(model_bytes), int(WAY_PART * fastest * round_trip_s))


def window_without_delay(model_bytes: int, links_s: float, slowest: float, compute_spread_s: float) -> int:
    """Where delay does not count; 0: none. slowest: rate of the slowest node; compute_spread_s: from the first worker that had
    computed to the last one."""
    usual_bytes = usual_inflight_bytes(model_bytes)
    held_back_s = compute_spread_s - usual_bytes / slowest
    return usual_bytes if held_back_s <= WINDOW_GAIN * links_s else 0
