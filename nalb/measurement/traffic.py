"""One iteration's samples as arrays, and the rates over time that they add up to."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from nalb.measurement.samples import LinkSample

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

STEPS_PER_WINDOW = 8


class Traffic:
    """The messages between nodes of one iteration, on one clock. Not for an empty sequence."""

    def __init__(self, samples: Sequence[LinkSample]):
        count = len(samples)
        self.source = np.fromiter((s.source for s in samples), np.int64, count)
        self.target = np.fromiter((s.target for s in samples), np.int64, count)
        self.size_bytes = np.fromiter((s.size_bytes for s in samples), np.float64, count)
        self.start_s = np.fromiter((s.start_s for s in samples), np.float64, count)
        self.end_s = np.fromiter((s.end_s for s in samples), np.float64, count)
        self.is_push = np.fromiter((s.is_push for s in samples), np.bool_, count)
        self.first_s, self.last_s = float(self.start_s.min()), float(self.end_s.max())

    @cached_property
    def is_full_sized(self) -> Mask:
        """Messages of about a common slice's size, probes and ramps left out."""
        return np.asarray(self.size_bytes >= 0.5 * np.quantile(self.size_bytes, 0.9))

    @property
    def span_s(self) -> float:
        """From the first forecast to the last message."""
        return self.last_s - self.first_s

    def on_pair(self, source: int, target: int) -> Mask:
        """The messages of a directed pair, pushes and answers."""
        return np.asarray((self.source == source) & (self.target == target))

    def windows(self, mask: Mask, window_s: float) -> Floats:
        """The mean rate in bytes/s of the masked messages together over [t, t + window_s], for t in steps of a window's eighth.

        Each message's bytes are spread evenly over [start, end]. All masks have the same t, from first_s on, as long as
        the window ends before last_s; a span shorter than the window gives one value, total / span.
        """
        if self.span_s <= window_s:
            return np.array([self.size_bytes[mask].sum() / self.span_s])
        step_s = window_s / STEPS_PER_WINDOW
        grid = self.first_s + step_s * np.arange(int(self.span_s / step_s) + 1)
        rate = self.size_bytes[mask] / (self.end_s[mask] - self.start_s[mask])
        edges = np.concatenate([[self.first_s], self.start_s[mask], self.end_s[mask]])
        order = np.argsort(edges, kind="stable")
        level = np.cumsum(np.concatenate([[0.0], rate, -rate])[order])
        times = edges[order]
        arrived = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
        curve = np.interp(grid, times, arrived)
        return np.asarray((curve[STEPS_PER_WINDOW:] - curve[:-STEPS_PER_WINDOW]) / window_s)

    def busy_part(self, mask: Mask) -> float:
        """The part of the span in which at least one of the masked messages is on its way."""
        order = np.argsort(self.start_s[mask], kind="stable")
        start, end = self.start_s[mask][order], np.maximum.accumulate(self.end_s[mask][order])
        if not len(start):
            return 0.0
        gaps = np.maximum(start[1:] - end[:-1], 0.0).sum()
        return float((end[-1] - start[0] - gaps) / self.span_s)
