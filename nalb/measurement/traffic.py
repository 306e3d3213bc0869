"""One iteration's samples as arrays, and the rates over time that they add up to.

A time stamp says when a frame was read, not when it arrived. Where a machine is short of CPU its processes stand for up to a
tenth of a second, and then read at the speed of memory what has come meanwhile: forecast and message at once. Rates over
windows hardly notice, since what is read late is read; the time of a single message says nothing then (`longest_s`).
"""

from functools import cached_property

import numpy as np

from nalb.measurement.samples import Floats, Ints, Mask, Samples

ROUNDING = 1e-9  # s: the least that a message takes
AT_ONCE_S = 0.5e-3  # between two frames that were there already, on a machine whose cores are busy


class Traffic:
    """The messages between nodes of one iteration, on one clock; at least one."""

    def __init__(self, samples: Samples):
        self._samples = samples
        self.source, self.target, self.is_push = samples["source"], samples["target"], samples["is_push"]
        self.size_bytes = samples["size_bytes"].astype(np.float64)
        self.start_s, self.end_s = samples["start_s"], samples["end_s"]
        self.first_s, self.last_s = float(self.start_s.min()), float(self.end_s.max())

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

    def carried(self, group: Ints, count: int, cells: int) -> Floats:
        """The bytes of each group's messages in each of so many equal cells of the span, shape (count, cells).

        group: of each message, 0 .. count - 1. Each message's bytes are spread evenly over [start, end].
        """
        took_s = np.maximum(self.end_s - self.start_s, ROUNDING)
        begin, axis_s = self._axis(group, count)
        edges = np.concatenate([begin + self.start_s, begin + self.start_s + took_s])
        order = np.argsort(edges, kind="stable")
        rate = np.cumsum(np.concatenate([self.size_bytes / took_s, -self.size_bytes / took_s])[order])
        so_far = np.append(0.0, np.cumsum(rate[:-1] * np.diff(edges[order])))
        return self._in_cells(edges[order], so_far, axis_s, count, cells)

    def active(self, group: Ints, count: int, cells: int) -> Floats:
        """For how many seconds of each cell at least one of each group's messages was on its way, shape (count, cells)."""
        begin, axis_s = self._axis(group, count)
        start, end = begin + self.start_s, begin + self.end_s
        order = np.argsort(start, kind="stable")
        end = np.maximum.accumulate(end[order])
        start = np.maximum(start[order], np.append(-np.inf, end[:-1]))
        so_far = np.repeat(np.cumsum(end - start), 2)
        so_far[::2] -= end - start
        return self._in_cells(np.stack([start, end], axis=1).ravel(), so_far, axis_s, count, cells)

    def _axis(self, group: Ints, count: int) -> tuple[Floats, Floats]:
        """One axis on which the groups' spans lie behind one another: what to add to a message's times, where each begins."""
        axis_s = 2 * self.span_s * np.arange(count)
        return axis_s[group] - self.first_s, axis_s

    def _in_cells(self, at_s: Floats, so_far: Floats, axis_s: Floats, count: int, cells: int) -> Floats:
        """What a rising curve over the groups' axis gained in each cell, shape (count, cells)."""
        edges = axis_s[:, np.newaxis] + np.linspace(0.0, self.span_s, cells + 1)
        return np.diff(np.interp(edges.ravel(), at_s, so_far, left=0.0).reshape(count, cells + 1), axis=1)


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
