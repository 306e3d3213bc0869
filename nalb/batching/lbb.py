"""LBB (Yao et al., 2023): it profiles workers, fits curves and solves for sizes, then tunes them by the straggler effect."""

from collections.abc import Sequence

import numpy as np

from nalb.batching.decisions import Observation, SizeDecision, observed_sizes, observed_times, settle
from nalb.batching.sizes import Bounds, Sizes, fastest
from nalb.batching.time_models import Polynomial, fit
from nalb.errors import InputError
from nalb.planning.nodes import Floats

FINE_THRESHOLD = 0.05  # FT of their Algorithm 2: below this straggler effect the workers are balanced
RAPID_THRESHOLD = 0.3  # RT: from this straggler effect on all sizes are set anew
STEP = 1  # samples that fine tuning moves; "usually 1"
FINE_ONLY = 20  # iterations after a rapid tuning that are only finely tuned; the paper gives no number
FIRST_SIZE = 4  # first batch of a profile: 2^p with p > 1
BALANCED, FINE, RAPID = "balanced", "fine tuning", "rapid tuning"  # reasons, for people


class BatchProfile:
    """One worker's profiling schedule: the sizes to time, one after another, until memory runs out (their Algorithm 1).

    The sizes are 4, 8, 16, ... up to `most`. A size that does not fit into memory ends the profile, and the size before it is the
    limit. The paper's loop has no other end; this one also ends at `most`, since no worker ever gets more samples than the others
    leave of the total. Where not even the first size fits, it is halved until one does. Raises InputError.
    """

    def __init__(self, most: int, first: int = FIRST_SIZE) -> None:
        if min(first, most) < 1:
            raise InputError(f"profile: from {first} to {most} samples: give 1 or more")
        self._most = most
        self._next: int | None = min(first, most)
        self._times: dict[int, float] = {}
        self._too_large: int | None = None

    @property
    def next_size(self) -> int | None:
        """The size to time now; None where the profile is done."""
        return self._next

    def measured(self, compute_s: float) -> None:
        """Note the time of `next_size`. Raises InputError when the profile is done or the time is not positive."""
        size = self._current()
        if not (np.isfinite(compute_s) and compute_s > 0):
            raise InputError(f"profile: {compute_s:g} s for {size} samples: report a positive time")
        self._times[size] = compute_s
        doubled = 2 * size
        self._next = doubled if doubled <= self._most and self._too_large is None else None

    def out_of_memory(self) -> None:
        """Note that `next_size` did not fit. Raises InputError when the profile is done or a single sample does not fit."""
        size = self._current()
        if size == 1:
            raise InputError("profile: the worker's memory does not hold a single sample: leave the worker out")
        self._too_large = size
        self._next = None if self._times else size // 2

    def _current(self) -> int:
        if self._next is None:
            raise InputError("profile: it is done: no size is being timed")
        return self._next

    @property
    def limit(self) -> int:
        """The most samples that the worker may get. Raises InputError before the end."""
        if self._next is not None:
            raise InputError(f"profile: not done: {self._next} samples are to be timed")
        return self._most if self._too_large is None else max(self._times)

    @property
    def curve(self) -> Polynomial:
        """The cubic fitted to the measured times (time_models.fit). Raises InputError before the end."""
        if self._next is not None:
            raise InputError(f"profile: not done: {self._next} samples are to be timed")
        return fit(list(self._times), list(self._times.values()))


def straggler_effect(times_s: Floats) -> float:
    """SE = (max t - min t) / mean t: how long the fastest worker waits, in parts of the mean time. Source: Yao et al., Eq. 4."""
    return float((times_s.max() - times_s.min()) / times_s.mean())


class ThresholdTuner:
    """Their Algorithm 2: the straggler effect SE of the last iteration decides whether sizes stay, move by a step, or are set anew.

    If SE < 0.05, sizes stay. If SE < 0.3, or within FINE_ONLY iterations of the last rapid tuning, STEP samples move from the
    slowest to the fastest worker. Otherwise rapid tuning takes t_i(b) = (t_i - a0_i) / b_i * b + a0_i, with a0 from the profile,
    and solves Eq. 3 on these lines in whole samples (sizes.fastest). Workers at their bounds are passed over; ties go to the lower
    index.

    Choices where the paper is open or slips:
    - The paper's fine tuning takes floor(step / 2) and gives ceil(step / 2). With its usual step of 1 it takes nothing and gives
      one sample, and the total grows. Here both numbers are equal.
    - A fine step is not made if, by the fastest worker's line, it would then take as long as the slowest takes now: the two would
      only swap places. With few samples per worker SE cannot fall below 0.05.
    - A fitted a0 that is negative, or above the worker's present time, counts as 0: time is then proportional to the batch.
    - Profiling is optional; without it a0 is 0.
    - The paper's text calls workers balanced if SE < RT, its algorithm if SE < FT. Here the algorithm holds.
    Cost: O(N) to watch, O(N x total) to tune rapidly.
    """

    def __init__(self, start: Sizes, bounds: Bounds, curves: Sequence[Polynomial] | None = None) -> None:
        if curves is not None and len(curves) != len(bounds.least):
            raise InputError(f"{len(curves)} compute curves for {len(bounds.least)} workers: give one per worker")
        self._start, self._bounds, self._curves = start, bounds, curves
        self._overheads_s = np.array([curve.overhead_s for curve in curves] if curves else [0.0] * len(bounds.least))
        self._fine_only = 0  # iterations that are still only finely tuned

    def begin(self) -> SizeDecision:
        if self._curves is None:
            return SizeDecision(None, "sizes as started: no profile")
        return settle(self._start, fastest(self._curves, self._bounds)[0], "least time by profiled curves")

    def update(self, observations: Sequence[Observation]) -> SizeDecision:
        present = observed_sizes(observations, self._bounds)
        times = observed_times(observations)
        effect = straggler_effect(times)
        fine_only, self._fine_only = self._fine_only > 0, max(0, self._fine_only - 1)
        if effect < FINE_THRESHOLD:
            return SizeDecision(None, BALANCED)
        overheads = np.where((self._overheads_s > 0) & (self._overheads_s < times), self._overheads_s, 0.0)
        slopes = (times - overheads) / np.array(present)
        if effect >= RAPID_THRESHOLD and not fine_only:
            self._fine_only = FINE_ONLY
            lines = [Polynomial((float(a0), float(a1))) for a0, a1 in zip(overheads, slopes, strict=True)]
            return settle(present, fastest(lines, self._bounds)[0], RAPID)
        return self._tune_finely(present, times, slopes)

    def _tune_finely(self, present: Sizes, times: Floats, slopes: Floats) -> SizeDecision:
        sizes = np.array(present)
        can_give, can_take = sizes > self._bounds.least, sizes < self._bounds.most
        if not (can_give.any() and can_take.any()):
            return SizeDecision(None, "all sizes are at their bounds")
        slowest = int(np.argmax(np.where(can_give, times, -np.inf)))
        fastest_worker = int(np.argmin(np.where(can_take, times, np.inf)))
        if times[fastest_worker] + STEP * slopes[fastest_worker] >= times[slowest]:
            return SizeDecision(None, "as even as whole samples allow")
        sizes[slowest] -= STEP
        sizes[fastest_worker] += STEP
        return SizeDecision(tuple(int(size) for size in sizes), FINE)
