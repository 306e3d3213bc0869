"""Receivers' reports of messages, made fit for estimating: checked, named by node, on one clock.

A receiver times each message on its own monotonic clock, from the arrival of the forecast to the arrival of the message (Cai et
al., section 3.2). A node's upward rate is the sum over several receivers' samples, so their clocks are aligned first. The
coordinator keeps for each process the smallest (arrival at the coordinator - time of sending) of the last 20 to 40 s. That is the
clocks' offset plus the shortest one-way delay. Older values do not count, since clocks drift apart, and a suspended machine's
clock stands still. The error is the spread of these delays: milliseconds, against windows of a tenth of a second. No report is
trusted: impossible ones are counted and dropped.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Samples = npt.NDArray[np.void]  # of SAMPLE: one message on one directed link each

SAMPLE = np.dtype(
    [
        ("source", np.int64),  # index of the sending node
        ("target", np.int64),  # index of the receiving node
        ("size_bytes", np.int64),  # all frames
        ("start_s", np.float64),  # its forecast arrived, on the common clock
        ("end_s", np.float64),  # it arrived, on the common clock
        ("is_push", np.bool_),  # worker to server; False: a server's answer, which has a connection of its own
    ]
)


class Fault(Enum):
    """Why a sample is refused; what people read of it."""

    UNKNOWN_PEER = "unknown peer"
    NO_BYTES = "no bytes"
    NO_FORECAST = "no forecast"
    NO_TIME = "no time"
    TOO_LONG = "too long"
    TOO_FAST = "too fast"
    ANOTHER_TIME = "another time"
    MORE = "more than was sent"

    @property
    def is_possible(self) -> bool:
        """Whether an honest process may report such a sample."""
        return self in (Fault.UNKNOWN_PEER, Fault.NO_FORECAST)


CHECKED = tuple(
    fault for fault in Fault if fault is not Fault.MORE
)  # what shows in a row by itself, in the order of `check`


def samples_of(rows: Iterable[tuple[int, int, int, float, float, bool]]) -> Samples:
    """Samples from rows in the order of SAMPLE."""
    return np.array(list(rows), dtype=SAMPLE)


ALIGNED_S = 20.0  # seconds: older delays no longer count, at twice that age at the latest. Quartz drifts by 1e-4 at most, so 4 ms.


@dataclass
class ClockAlignment:
    """Offsets of the processes' monotonic clocks to the coordinator's, by the shortest recent delay."""

    offset_s: dict[str, float] = field(default_factory=dict)
    # (when a process's present ALIGNED_S began, on our clock; the least offset since; the least offset of the ALIGNED_S before)
    _least: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def observe_stamp(self, process: str, sent_s: float, received_s: float) -> None:
        """Take in that a message stamped `sent_s` on the process's clock came in at `received_s` on ours."""
        begun_s, present_s, before_s = self._least.get(process, (received_s, math.inf, math.inf))
        if received_s - begun_s >= ALIGNED_S:
            begun_s, present_s, before_s = received_s, math.inf, present_s
        present_s = min(present_s, received_s - sent_s)
        self._least[process] = begun_s, present_s, before_s
        self.offset_s[process] = min(present_s, before_s)

    def to_common_s(self, process: str, time_s: float) -> float:
        """A time on the process's clock, converted to our clock."""
        return time_s + self.offset_s[process]


MAX_RATE_BYTES_PER_S = 50e9  # 400 Gbit/s: beyond any link that a parameter server sits on
READ_S = 1e-3  # seconds: a machine that was busy reads forecast and message, both waiting, microseconds apart
MAX_SAMPLE_S = 3600.0  # seconds: no message of a training job takes an hour


def check(
    rows: Ints,
    target: Ints,
    node_of_peer: dict[int, int],
    shift_s: Floats,
    within_s: Floats,
) -> tuple[Samples, Ints, Ints]:
    """The valid samples among receivers' rows (peer, bytes, start ns, end ns), shape (n, 4); the rest has an entry per row.

    Peers have odd numbers where a worker sent the message, and even ones where a server did. target: the receiver's node; shift_s:
    from the receiver's clock to the common one; within_s: the first and the last moment at which the message can have arrived, on
    the common clock, shape (n, 2). Returns the samples, the row number of each sample, and the fault of each row: its place in
    CHECKED, -1 for none. Messages to a node's own server cross no link: they are left out without a fault.
    """
    peer, size_bytes, start_ns, end_ns = rows.T
    known = np.array(sorted(node_of_peer), dtype=np.int64)
    place = np.minimum(np.searchsorted(known, peer), len(known) - 1)
    source = np.array([node_of_peer[one] for one in known.tolist()], dtype=np.int64)[place]
    elapsed_s = (end_ns - start_ns) * 1e-9
    start_s, end_s = start_ns * 1e-9 + shift_s, end_ns * 1e-9 + shift_s
    is_link = (source != target) | (known[place] != peer)
    possible_s = np.maximum(elapsed_s, 0.0) + READ_S
    wrong = np.select(
        [
            known[place] != peer,
            size_bytes <= 0,
            start_ns <= 0,
            ~(elapsed_s > 0),
            elapsed_s > MAX_SAMPLE_S,
            size_bytes / possible_s > MAX_RATE_BYTES_PER_S,
            ~((within_s[:, 0] <= end_s) & (start_s < end_s) & (end_s <= within_s[:, 1])),
        ],
        list(range(len(CHECKED))),
        -1,
    )
    wrong[~is_link] = -1
    kept = np.flatnonzero(is_link & (wrong < 0))
    samples = np.empty(len(kept), dtype=SAMPLE)
    columns = (source, target, size_bytes, start_s, end_s, peer % 2 == 1)
    for name, column in zip(SAMPLE.names or (), columns, strict=True):
        samples[name] = column[kept]
    return samples, kept, wrong
