"""One iteration's samples as arrays, and the rates over time that they add up to.

A time stamp says when a frame was read, not when it arrived. Where a machine is short of CPU its processes stand for up to a
tenth of a second, and then read at the speed of memory what has come meanwhile: forecast and message at once. Rates over
windows hardly notice, since what is read late is read; the time of a single message says nothing then (`longest_s`).
"""

from functools import cached_property

import numpy as np

from nalb.measurement.samples import Floats, Ints, Mask, Samples

Rows = Ints  # which messages: indices, rising

STEPS_PER_WINDOW = 8
ROUNDING = 1e-9  # of a step
AT_ONCE_S = 0.5e-3  # between two frames that were there already, on a machine whose cores are busy


class Traffic:
    """The messages between nodes of one iteration, on one clock; at least one."""

    def __init__(self, samples: Samples):
        self._samples = samples
        self.source, self.target, self.is_push = samples["source"], samples["target"], samples["is_push"]
        self.size_bytes = samples["size_bytes"].astype(np.float64)
        self.start_s, self.end_s = samples["start_s"], samples["end_s"]
        self.first_s, self.last_s = float(self.start_s.min()), float(self.end_s.max())
        self._nodes = int(max(self.source.max(), self.target.max())) + 1

    @cached_property
    def is_full_sized(self) -> Mask:
        """Messages of about a common slice's size, probes and ramps left out."""
        return np.asarray(self.size_bytes >= 0.5 * np.quantile(self.size_bytes, 0.9))

    @cached_property
    def longest_s(self) -> Floats:
        """The seconds that each message may have been on its way: from its forecast, or from before it, if that was read late.

        Frames of one receiving process that were read at once, no two of them AT_ONCE_S apart, may have come at any time since
        the process last read. If a whole full-sized message is among them they had been waiting, and all that begins there
        may have begun as much earlier as the process had stood still. Links so fast that a slice takes AT_ONCE_S look
        alike: an upper bound there too.
        """
        process = np.tile(2 * self.target + self.is_push, 2)  # a node's server gets pushes, its worker answers
        read_s = np.concatenate([self.start_s, self.end_s])
        order = np.lexsort((read_s, process))
        pause_s = np.diff(read_s[order], prepend=read_s[order[0]])
        pause_s[np.diff(process[order], prepend=process[order[0]]) != 0] = np.inf  # another process's
        begins = pause_s > AT_ONCE_S
        burst = np.empty(len(order), dtype=np.int64)
        burst[order] = np.cumsum(begins)
        before_s = np.concatenate([[0.0], pause_s[begins]])
        before_s[np.isinf(before_s)] = 0.0  # nothing is known of the time before a process's first frame
        first, last = np.split(burst, 2)
        waited = np.zeros(len(before_s), dtype=np.bool_)
        waited[first[(first == last) & self.is_full_sized]] = True
        return np.asarray(self.end_s - self.start_s + np.where(waited[first], before_s[first], 0.0))

    @property
    def span_s(self) -> float:
        """From the first forecast to the last message."""
        return self.last_s - self.first_s

    def since(self, at_s: float) -> "Traffic":
        """What travelled from then on: of a message under way the part of its bytes that was left. Some must have ended later."""
        left = self._samples[self.end_s > at_s]
        whole_s = left["end_s"] - left["start_s"]
        left["start_s"] = np.maximum(left["start_s"], at_s)
        left["size_bytes"] = np.maximum(1, left["size_bytes"] * ((left["end_s"] - left["start_s"]) / whole_s))
        return Traffic(left)

    def lasting(self, group: Ints, count: int) -> tuple[Floats, Floats]:
        """When each group's first message starts and its last one ends; inf and -inf for one without messages.

        group: of each message, 0 .. count - 1.
        """
        order, sizes = np.argsort(group, kind="stable"), np.bincount(group, minlength=count)
        some = np.flatnonzero(sizes)
        at = (np.cumsum(sizes) - sizes)[some]
        first_s, last_s = np.full(count, np.inf), np.full(count, -np.inf)
        first_s[some] = np.minimum.reduceat(self.start_s[order], at)
        last_s[some] = np.maximum.reduceat(self.end_s[order], at)
        return first_s, last_s

    def served_s(self, num_nodes: int) -> Floats:
        """When the last message to or from each node's server ended, shape (N,); -inf for one without messages."""
        server = np.where(self.is_push, self.target, self.source)
        return self.lasting(server, num_nodes)[1]

    @cached_property
    def _by_pair(self) -> tuple[Ints, Ints, Rows, Ints]:
        """The directed pairs with messages as source * nodes + target, each message's place among them, and all by pair."""
        pair, place = np.unique(self.source * self._nodes + self.target, return_inverse=True)
        return pair, place, np.argsort(place, kind="stable"), np.append(0, np.cumsum(np.bincount(place)))

    def _messages(self, number: int) -> Rows:
        """Of the pair with that number, pushes and answers."""
        order, starts = self._by_pair[2:]
        return order[starts[number] : starts[number + 1]]

    def between(self, source: int, target: int) -> Rows:
        """The messages of a directed pair, pushes and answers."""
        pairs, key = self._by_pair[0], source * self._nodes + target
        number = int(np.searchsorted(pairs, key))
        known = max(source, target) < self._nodes and number < len(pairs) and pairs[number] == key
        return self._messages(number) if known else np.empty(0, np.int64)

    def pairs_busy_for(self, least_s: float) -> dict[tuple[int, int], Rows]:
        """The messages of the pairs between whose first message's start and last one's end there is at least so much time."""
        pairs, place = self._by_pair[:2]
        first_s, last_s = self.lasting(place, len(pairs))
        busy = np.flatnonzero(last_s - first_s >= least_s).tolist()
        return {divmod(int(pairs[number]), self._nodes): self._messages(number) for number in busy}

    def arrived(self, rows: Rows, at_s: Floats) -> Floats:
        """How many bytes of these messages had arrived, whole ones alone, by each of these times."""
        order = rows[np.argsort(self.end_s[rows], kind="stable")]
        so_far = np.append(0.0, np.cumsum(self.size_bytes[order]))
        return np.asarray(so_far[np.searchsorted(self.end_s[order], at_s, "right")])

    def windows(self, rows: Rows, group: Ints, window_s: Floats) -> tuple[Floats, Ints]:
        """The mean rate in bytes/s of each group's messages together over [t, t + window], for t in steps of its eighth.

        rows: messages; group: of each of them, 0 .. G - 1; window_s: per group, shape (G,). Each message's bytes are
        spread evenly over [start, end]. All groups' t begin at first_s, and windows end before last_s; one longer than the
        span gives one value, total / span. The values, group after group, and the group of each. Cost: one sort.
        """
        window_s = np.minimum(window_s, self.span_s)
        step_s = window_s / STEPS_PER_WINDOW
        apart_s = 2 * self.span_s  # all groups lie on one axis, each behind the one before
        begin_s = apart_s * np.arange(len(window_s))
        start_s, end_s = (begin_s[group] + (times[rows] - self.first_s) for times in (self.start_s, self.end_s))
        rate = self.size_bytes[rows] / (self.end_s[rows] - self.start_s[rows])
        edges = np.concatenate([begin_s, begin_s + self.span_s, start_s, end_s])
        order = np.argsort(edges, kind="stable")
        level = np.cumsum(np.concatenate([np.zeros(2 * len(begin_s)), rate, -rate])[order])
        edges = edges[order]
        arrived = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(edges))])
        steps = (self.span_s / step_s + ROUNDING).astype(np.int64) + 1
        which = np.repeat(np.arange(len(steps)), steps)
        step = np.arange(len(which)) - np.repeat(np.cumsum(steps) - steps, steps)
        curve = np.interp(begin_s[which] + step * step_s[which], edges, arrived)
        first = np.flatnonzero(step < (steps - STEPS_PER_WINDOW)[which])
        values = (curve[first + STEPS_PER_WINDOW] - curve[first]) / window_s[which[first]]
        return np.asarray(values), np.asarray(which[first])

    def busy_part(self, rows: Rows) -> float:
        """The part of the span in which at least one of these messages is on its way."""
        order = np.argsort(self.start_s[rows], kind="stable")
        start, end = self.start_s[rows][order], np.maximum.accumulate(self.end_s[rows][order])
        if not len(start):
            return 0.0
        gaps = np.maximum(start[1:] - end[:-1], 0.0).sum()
        return float((end[-1] - start[0] - gaps) / self.span_s)


def quantiles(values: Floats, group: Ints, part: Floats) -> Floats:
    """The quantile part[g] of each group's values, as numpy's: linear between two. NaN for a group without values.

    group: per value, 0 .. G - 1; part: shape (G,), 0 to 1. Cost: one sort for all groups.
    """
    ordered = values[np.lexsort((values, group))]
    sizes = np.bincount(group, minlength=len(part))
    first, last = np.cumsum(sizes) - sizes, np.maximum(sizes - 1, 0)
    place = part * last
    low = place.astype(np.int64)
    result = np.full(len(part), np.nan)
    some = np.flatnonzero(sizes)
    below, above = ordered[(first + low)[some]], ordered[(first + np.minimum(low + 1, last))[some]]
    result[some] = below + (place - low)[some] * (above - below)
    return result
