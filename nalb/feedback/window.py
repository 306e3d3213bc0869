"""The window: the bytes that a worker may have under way, few enough to keep nodes in step, enough for delay and queues. Pure.

evidence                                               window                           reason
delay makes up DELAY_PART of an iteration              WAY_PART of what the fastest     bytes that workers push all at once do not
                                                       node can have on its way         fit into queues: packets are lost
the same with BBR                                      none                             BBR sends at the rate that it measures, and
                                                                                        a window hides what links could carry
                                                                                        (measured on geo3x4)
workers end computing farther apart than the window    none                             a window would hold back workers that have
and WINDOW_GAIN of the exchange can make up for                                         computed
else                                                   the usual one                    all servers have sums to answer at any time

trust.py says which iterations have no window in any case. Times are in seconds, rates in bytes per second.
"""

from collections.abc import Callable
from dataclasses import dataclass

# Round trips that an iteration takes beside the time that its links need: the first push's way, the last sum's, and TCP's slow
# start, which all connections go through at once (measured with pacing at 100 and 200 ms: 2 to 3).
ROUND_TRIPS = 3


def delay_s(round_trip_s: float) -> float:
    """Seconds that an iteration takes beside the time that its links need."""
    return ROUND_TRIPS * round_trip_s


DELAY_PART = 0.05  # part of an iteration's time on links: delay that is longer counts. Choice.


def delay_counts(round_trip_s: float, links_s: float) -> bool:
    """Whether delay makes up much of an iteration whose links need so long."""
    return delay_s(round_trip_s) > DELAY_PART * links_s


# Of values that travel as they are. Measured on wan6-static: above 1 MB nothing is gained, without a window a tenth is lost.
LOW_INFLIGHT_BYTES = 2_000_000
# The model is divided by it: each iteration begins with so much at full speed, which also shows the nodes' rates. Choice.
WINDOW_PART = 8


def usual_inflight_bytes(model_bytes: int, wire_part: float = 1.0) -> int:
    """The window where delay does not count. wire_part: bytes on the wire per byte of values.

    With fewer bytes on the wire everything that links do takes less time in proportion, so the same values are under way.
    """
    return max(int(wire_part * LOW_INFLIGHT_BYTES), model_bytes // WINDOW_PART)


# Part of the bytes that the fastest node can have on its way. With all of them, or more, packets are lost (measured at 50 to 200
# ms, queues of 50 ms).
WAY_PART = 2 / 3


def window_with_delay(usual_bytes: int, round_trip_s: float, fastest: float, is_bbr: bool) -> int:
    """The window where delay counts; 0: none. fastest: rate of the fastest node; is_bbr: all far nodes are sent to with BBR."""
    return 0 if is_bbr else max(usual_bytes, int(WAY_PART * fastest * round_trip_s))


# Part of the exchange that a window saves at most. A window holds back workers that have computed until the slowest one has too,
# but for what fits into it, so it costs up to the time between them (uneven4-both: 4.7 s with a window, 3.9 s without).
WINDOW_GAIN = 0.1


def window_without_delay(usual_bytes: int, links_s: float, slowest: float, compute_spread_s: float) -> int:
    """The window where delay does not count; 0: none. slowest: rate of the slowest node; compute_spread_s: from the moment when the
    first worker had computed to that when the last one had."""
    held_back_s = compute_spread_s - usual_bytes / slowest
    return usual_bytes if held_back_s <= WINDOW_GAIN * links_s else 0


@dataclass(frozen=True)
class LinkPace:
    """What a window depends on."""

    links_s: float  # of an iteration, without delay
    usual_bytes: int  # the window where delay does not count
    round_trip_s: float  # to the farthest node; 0 where queues make up for it
    is_bbr: bool  # all far nodes are sent to with BBR
    fastest: float  # rate of the fastest node, or of the fastest uplink where sums have two levels
    slowest: float  # rate of the slowest node
    compute_spread_s: float  # of the last iteration, from the first worker that had computed to the last one


def choose_window(pace: LinkPace | None, may_have: Callable[[], bool]) -> int:
    """The window of the next iteration; 0: none. pace: None while not all is measured.

    may_have: asked once, and only where delay does not count, whether the iteration may have a window.
    """
    if pace is not None and delay_counts(pace.round_trip_s, pace.links_s):
        return window_with_delay(pace.usual_bytes, pace.round_trip_s, pace.fastest, pace.is_bbr)
    if not may_have() or pace is None:
        return 0
    return window_without_delay(pace.usual_bytes, pace.links_s, pace.slowest, pace.compute_spread_s)
