"""What the receivers saw, made fit for estimating: checked, named by node, on one clock.

A receiver times each message on its own monotonic clock, from the arrival of its forecast to its own arrival (Cai et al.,
section 3.2). A node's upward rate needs the samples of several receivers added up, so their clocks are aligned first: the
coordinator keeps, per process, the smallest (arrival at the coordinator - time of sending) that it has seen, which is the
clocks' offset plus the shortest one-way delay. The error is the spread of those shortest delays: milliseconds, against
windows of a tenth of a second. Nothing here is trusted: what is impossible is counted and dropped.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_RATE_BYTES_PER_S = 50e9  # 400 Gbit/s: beyond any link that a parameter server sits on
READ_S = 1e-3  # a machine that was busy reads forecast and message, both waiting, microseconds apart
MAX_SAMPLE_S = 3600.0  # no message of a training job takes an hour


@dataclass(frozen=True, slots=True)
class LinkSample:
    """One message on one directed link."""

    source: int  # index of the sending node
    target: int  # index of the receiving node
    size_bytes: int  # all frames
    start_s: float  # its forecast arrived, on the common clock
    end_s: float  # it arrived, on the common clock
    is_push: bool = True  # worker to server; False: a server's answer, which has a connection of its own

    @property
    def rate_bytes_per_s(self) -> float:
        """Eq. 6 of Cai et al."""
        return self.size_bytes / (self.end_s - self.start_s)


@dataclass
class ClockAlignment:
    """Offsets of the processes' monotonic clocks to the coordinator's, by the shortest delay seen."""

    offset_s: dict[str, float] = field(default_factory=dict)

    def observe(self, process: str, sent_s: float, received_s: float) -> None:
        """A message stamped `sent_s` on the process's clock came in at `received_s` on ours."""
        seen = received_s - sent_s
        self.offset_s[process] = min(seen, self.offset_s.get(process, math.inf))

    def to_common_s(self, process: str, time_s: float) -> float:
        """A time on the process's clock, on ours."""
        return time_s + self.offset_s[process]


def check(
    rows: Iterable[tuple[int, int, int, int]],
    target: int,
    node_of_peer: dict[int, int],
    rejected: Counter[str],
    is_push: bool = True,
    shift_s: float = 0.0,
    within_s: tuple[float, float] = (-math.inf, math.inf),
) -> list[LinkSample]:
    """The valid samples among a receiver's rows (peer id, bytes, start ns, end ns), `shift_s` added to their times.

    within_s: when a message can have arrived, on the common clock.

    Loopback (a node's own server) is no link and is left out silently. Counted in `rejected`: 'unknown peer', 'no forecast',
    'no time' (zero or negative), 'too long', 'too fast', 'no bytes', 'another time'.
    """
    kept = []
    for peer, size_bytes, start_ns, end_ns in rows:
        source = node_of_peer.get(peer)
        elapsed_s = (end_ns - start_ns) * 1e-9
        if source is None:
            rejected["unknown peer"] += 1
        elif source == target:
            continue
        elif size_bytes <= 0:
            rejected["no bytes"] += 1
        elif start_ns <= 0:
            rejected["no forecast"] += 1
        elif not elapsed_s > 0:
            rejected["no time"] += 1
        elif elapsed_s > MAX_SAMPLE_S:
            rejected["too long"] += 1
        elif size_bytes / (elapsed_s + READ_S) > MAX_RATE_BYTES_PER_S:
            rejected["too fast"] += 1
        else:
            start_s, end_s = start_ns * 1e-9 + shift_s, end_ns * 1e-9 + shift_s
            if not within_s[0] <= start_s < end_s <= within_s[1]:
                rejected["another time"] += 1
                continue
            kept.append(LinkSample(source, target, size_bytes, start_s, end_s, is_push))
    return kept
