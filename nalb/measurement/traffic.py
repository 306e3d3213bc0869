"""One iteration's samples as arrays, and the rates over time that they add up to.

A time stamp says when a frame was read, not when it arrived. On a machine that is short of CPU, processes stand still for up to a
tenth of a second. Then they read at the speed of memory what has come meanwhile, forecast and message at once. Rates over windows
hardly notice, since late frames are read in the end; the time of a single message says nothing then.
"""

import numpy as np

from nalb.measurement.samples import Floats, Ints, Mask, Samples

LEAST_MESSAGE_S = 1e-9  # seconds that a message takes at least: rates divide by them


class Traffic:
    """The messages between nodes of one iteration, on one clock; at least one.

    Arrays have one element for each message: source, target: indices of nodes; is_push: to a server, else an answer from one;
    size_bytes; start_s, end_s: when the forecast and the whole message were read. first_s, last_s: the earliest and the latest.
    """

    def __init__(self, samples: Samples, has_full_cores: Mask | bool = False, is_stale: bool = False):
        """samples: a row for each message. has_full_cores: whether each node's cores worked nearly all the time, shape (N,), or
        one answer for all nodes. is_stale: the iteration's plan was made before the iteration before had been observed.
        """
        self.has_full_cores, self.is_stale = has_full_cores, is_stale
        self.samples = samples
        self.source, self.target, self.is_push = samples["source"], samples["target"], samples["is_push"]
        self.size_bytes = samples["size_bytes"].astype(np.float64)
        self.start_s, self.end_s = samples["start_s"], samples["end_s"]
        self.first_s, self.last_s = float(self.start_s.min()), float(self.end_s.max())

    @property
    def span_s(self) -> float:
        """Seconds from the first forecast to the last message."""
        return self.last_s - self.first_s

    def since(self, at_s: float) -> "Traffic":
        """The traffic from then on: a message under way has the part of its bytes that was left. One must end later than `at_s`."""
        left = self.samples[self.end_s > at_s]
        whole_s = left["end_s"] - left["start_s"]
        left["start_s"] = np.maximum(left["start_s"], at_s)
        part = np.divide(left["end_s"] - left["start_s"], whole_s, out=np.ones(len(left)), where=whole_s > 0)
        left["size_bytes"] = np.maximum(1, left["size_bytes"] * part)
        return Traffic(left, self.has_full_cores, self.is_stale)

    def grouped(self, group: Ints) -> "Traffic | None":
        """The traffic between groups of nodes, as if each group were one node; None for none. group: each node's, shape (N,)."""
        between = self.samples[group[self.source] != group[self.target]]
        between["source"], between["target"] = group[between["source"]], group[between["target"]]
        return Traffic(between, is_stale=self.is_stale) if len(between) else None

    def served_s(self, num_nodes: int) -> Floats:
        """When the last message to or from each node's server ended, shape (N,), N = num_nodes; -inf for one without messages."""
        last_s = np.full(num_nodes, -np.inf)
        np.maximum.at(last_s, np.where(self.is_push, self.target, self.source), self.end_s)
        return last_s

    def carried(self, group: Ints, count: int, cells: int) -> Floats:
        """The bytes of each group's messages in each of so many equal cells of the span, shape (count, cells).

        group: each message's, 0 .. count - 1. Each message's bytes are spread evenly over [start, end].
        """
        took_s = np.maximum(self.end_s - self.start_s, LEAST_MESSAGE_S)
        begin, axis_s = self._axis(group, count)
        edges = np.concatenate([begin + self.start_s, begin + self.start_s + took_s])
        order = np.argsort(edges, kind="stable")
        rate = np.cumsum(np.concatenate([self.size_bytes / took_s, -self.size_bytes / took_s])[order])
        rate = np.maximum(rate, 0.0)  # rounding errors make it negative where no message is on its way
        so_far = np.append(0.0, np.cumsum(rate[:-1] * np.diff(edges[order])))
        return self._in_cells(edges[order], so_far, axis_s, count, cells)

    def active(self, group: Ints, count: int, cells: int) -> Floats:
        """Seconds of each cell for which at least one of each group's messages was on its way, shape (count, cells)."""
        begin, axis_s = self._axis(group, count)
        start, end = begin + self.start_s, begin + self.end_s
        order = np.argsort(start, kind="stable")
        end = np.maximum.accumulate(end[order])
        start = np.maximum(start[order], np.append(-np.inf, end[:-1]))
        so_far = np.repeat(np.cumsum(end - start), 2)
        so_far[::2] -= end - start
        return self._in_cells(np.stack([start, end], axis=1).ravel(), so_far, axis_s, count, cells)

    def _axis(self, group: Ints, count: int) -> tuple[Floats, Floats]:
        """(what to add to each message's times, where each group begins), on one axis with the groups' spans in a row."""
        axis_s = 2 * self.span_s * np.arange(count)
        return axis_s[group] - self.first_s, axis_s

    def _in_cells(self, at_s: Floats, so_far: Floats, axis_s: Floats, count: int, cells: int) -> Floats:
        """The gain in each cell of a rising curve over the groups' axis, shape (count, cells)."""
        edges = axis_s[:, np.newaxis] + np.linspace(0.0, self.span_s, cells + 1)
        return np.diff(np.interp(edges.ravel(), at_s, so_far, left=0.0).reshape(count, cells + 1), axis=1)
