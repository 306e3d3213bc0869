"""Windows: the bytes that each worker may have under way, few enough to keep nodes in step, enough for delay and queues. Pure.

evidence                                               windows                          reason
delay makes up DELAY_PART of an iteration              WAY_PART of what the fastest     bytes that workers push all at once do not
                                                       worker can have on its way       fit into queues: packets are lost
the same with BBR                                      none                             BBR sends at the rate that it measures, and
                                                                                        a window hides what links could carry
                                                                                        (measured on geo3x4)
workers end computing farther apart than the window    none                             a window would hold back workers that have
and WINDOW_GAIN of the exchange can make up for                                         computed
else                                                   the usual ones                   all servers have sums to answer at any time

trust.py says which iterations have no window in any case. Times are in seconds, rates in bytes per second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean

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


def delay_sets_pace(round_trip_s: float, took_s: float) -> bool:
    """Whether delay makes up most of an exchange that took so long."""
    return 2 * delay_s(round_trip_s) > took_s


# Of each server, under way of a worker at a time, on average over workers. Simulated on 26 networks of 4 to 10 nodes: with 3 slices
# exchanges take 0.94 to 1.00 of the time that they take with 2 MB for everyone, 0.98 on average.
SLICES_PER_SERVER = 3
# Likewise, of any worker. With one, its link carries pushes and answers by turns: where one of 8 nodes had a hundredth of the
# others' rate, exchanges took 1.9 times the bound, with two 1.04 times (simulated).
LEAST_SLICES_PER_SERVER = 2


def usual_windows(slice_bytes: int, num_servers: int, uplinks: Sequence[float], least_bytes: float = 0.0) -> list[int]:
    """Each worker's window where delay does not count, bytes.

    slice_bytes: of a slice of common size, as it travels. uplinks: each worker's rate out, bytes per second; 0: no worker there.
    least_bytes: what a worker pushes while a slice is away at the slowest server that is no worker.

    TCP gives all connections of a full uplink the same rate, whatever each has to carry. So a worker pushes what is under way to a
    server of a small share first, and a server of a large share waits for its slices. Fewer bytes under way leave less to push out
    of order. A slow uplink needs that most, and a fast one has room for more: a window grows as the root of the uplink's rate.

    Slices leave in order, so a slice that is away for long at a slow server holds up all that comes a window after it. So a window
    has at least what the worker pushes meanwhile.
    """
    usual = SLICES_PER_SERVER / mean(sqrt(rate) for rate in uplinks if rate)
    slices = [num_servers * max(usual * sqrt(rate), LEAST_SLICES_PER_SERVER) for rate in uplinks]
    return [int(max(slice_bytes * one, least_bytes)) for one in slices]


def with_room(windows: Sequence[int], uplinks: Sequence[float], away_s: float) -> list[int]:
    """The windows with room for what each uplink carries while a slice is away for so long."""
    return [window + int(rate * away_s) for window, rate in zip(windows, uplinks, strict=True)]


LOW_FAR_BYTES = 2_000_000  # of values that travel as they are: the least window where delay counts
FAR_PART = 8  # the model is divided by it for another least window there. Choice.
# Part of the bytes that the fastest node can have on its way. With all of them, or more, packets are lost (measured at 50 to 200
# ms, queues of 50 ms).
WAY_PART = 2 / 3


def window_with_delay(model_bytes: int, wire_part: float, round_trip_s: float, fastest: float, is_bbr: bool) -> int:
    """Every worker's window where delay counts; 0: no limit.

    wire_part: bytes on the wire per byte of values: with fewer bytes everything that links do takes less time in proportion.
    fastest: rate of the fastest worker's node. is_bbr: all far nodes are sent to with BBR.
    """
    least_bytes = max(int(wire_part * LOW_FAR_BYTES), model_bytes // FAR_PART)
    return 0 if is_bbr else max(least_bytes, int(WAY_PART * fastest * round_trip_s))


# Part of the exchange that a window saves at most. A window holds back workers that have computed until the slowest one has too,
# but for what fits into it, so it costs up to the time between them (uneven4-both: 4.7 s with a window, 3.9 s without).
WINDOW_GAIN = 0.1


def windows_without_delay(pace: "LinkPace") -> list[int]:
    """The windows where delay does not count; none: no limit."""
    windows = with_room(pace.usual, pace.uplinks, pace.round_trip_s + pace.capped_s)
    covered_s = max(window / rate for window, rate in zip(windows, pace.uplinks, strict=True) if rate)
    held_back_s = pace.compute_spread_s - covered_s
    return windows if held_back_s <= WINDOW_GAIN * pace.links_s else []


@dataclass(frozen=True)
class LinkPace:
    """What windows depend on."""

    links_s: float  # of an iteration, without delay
    usual: Sequence[int]  # the windows where delay does not count, by node
    model_bytes: int  # as they travel
    wire_part: float  # bytes on the wire per byte of values
    uplinks: Sequence[float]  # the rates out of the nodes, bytes per second; 0 where there is no worker
    round_trip_s: float  # to the farthest node; 0 where queues make up for it
    capped_s: float  # for which a slice is away over the slowest capped pair; 0: there is none
    is_bbr: bool  # all far nodes are sent to with BBR
    fastest: float  # rate of the fastest worker's node, or of the fastest uplink where sums have two levels
    compute_spread_s: float  # of the last iteration, from the first worker that had computed to the last one


def choose_windows(pace: LinkPace | None, may_have: Callable[[], bool]) -> list[int]:
    """The windows of the next iteration, by node; empty: none. pace: None while not all is measured.

    may_have: asked once, and only where delay does not count, whether the iteration may have windows.
    """
    if pace is not None and delay_counts(pace.round_trip_s, pace.links_s):
        far_bytes = window_with_delay(pace.model_bytes, pace.wire_part, pace.round_trip_s, pace.fastest, pace.is_bbr)
        return [far_bytes] * len(pace.usual) if far_bytes else []
    if not may_have() or pace is None:
        return []
    return windows_without_delay(pace)
