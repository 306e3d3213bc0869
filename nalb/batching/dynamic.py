"""Dynamic Batching (Tyagi and Sharma, 2020): sizes are set once by power or throughput, or all the time by proportional control."""

from collections.abc import Sequence

import numpy as np

from nalb.batching.decisions import Observation, SizeDecision, observed_sizes, observed_times, settle
from nalb.batching.sizes import Bounds, Sizes, apportion
from nalb.errors import InputError, listed
from nalb.planning.nodes import Floats

DEAD_BAND = 0.05  # part of a worker's size: smaller changes are not worth a readjustment (their III-C)
SMOOTHING = 0.2  # weight of the newest time in the moving average; LB-BSP's, since the paper gives no number
DROP = 0.05  # part of throughput: smaller drops are noise; the dead-band's, since the paper gives no number
SETTLE = 5  # iterations averaged before a change; LB-BSP's short window, since the paper gives no number


class OpenLoop:
    """Static allocation: sets b_k = (sum b) X_k / sum_i X_i once (their III-B).

    X_k is `power`, e.g. CPU cores or half-precision FLOP/s, where it is given. Otherwise it is the throughput measured over the
    first `window` iterations, samples per second. The paper prints b_0 X_k / sum X with b_0 the average size. Such sizes would add
    up to b_0; the paper's next sentence has K b_0, as here. Cost: O(N log N). Raises InputError.
    """

    def __init__(
        self, start: Sizes, bounds: Bounds, power: Sequence[float] | None = None, window: int = SETTLE
    ) -> None:
        if window < 1:
            raise InputError(f"open loop: a window of {window} iterations measures nothing: give 1 or more")
        self._start, self._bounds, self._power, self._left = start, bounds, power, window
        self._samples = np.zeros(len(bounds.least))
        self._seconds = np.zeros(len(bounds.least))

    def begin(self) -> SizeDecision:
        if self._power is None:
            return SizeDecision(None, "sizes as started until throughput is measured")
        self._left = 0
        return settle(self._start, apportion(self._power, self._bounds), "in proportion to known power")

    def update(self, observations: Sequence[Observation]) -> SizeDecision:
        present = observed_sizes(observations, self._bounds)
        if self._power is not None or self._left == 0:
            return SizeDecision(None, "set once")
        self._samples += np.array(present)
        self._seconds += observed_times(observations)
        self._left -= 1
        if self._left:
            return SizeDecision(None, "throughput is being measured")
        return settle(present, apportion(self._samples / self._seconds, self._bounds), "in proportion to throughput")


class ProportionalControl:
    """Closed loop: b_k' = b_k - X_k (mu_k - mean mu), X_k = b_k / mu_k, with mu_k the time smoothed since the last change.

    That is b_k mean(mu) / mu_k (Eqs. 4 and 5), in their four steps: (1) compute mu; (2) compute new sizes; (3) keep them within
    bounds; (4) change all sizes if max_k |b_k' - b_k| / b_k > 0.05, else none. Where a worker's throughput has dropped since its
    size was raised from b_0, its upper bound becomes b_0.

    Choices where the paper is open or slips:
    - Eq. 5 does not keep the total: sum_k b_k mean/mu_k is above it. The paper's static policy promises that the total is kept. So
      sizes are scaled to it, in whole samples and within bounds, which leaves them in proportion to X_k.
    - Step 4 prints no absolute value, and its text asks for 5 % "on all workers" in one sentence and on any worker in another. Here
      a change of any worker suffices, up or down.
    - The paper gives neither a smoothing weight nor a least number of iterations. One iteration would leave nothing to smooth, so
      SETTLE iterations are averaged before a change.
    - A drop must exceed DROP, since otherwise noise would count as a drop. It is judged once after each raise. A disturbance that
      begins just then counts as a drop, and nothing in the paper lifts the bound again.
    - A bound is not learnt if all bounds together could no longer take the total. Nor is it learnt if, by the observed throughputs,
      it would make the next iteration longer: the paper wants bounds that keep the total throughput from dropping. (A busy machine
      is slower now and then. With a worker of 1/10 of the cores, a drop of 7 % kept the largest machine at a third of the samples,
      and one of 15 % made all sizes equal again, four times as slow.) The reason then says so.
    Cost: O(N log N).
    """

    def __init__(
        self,
        start: Sizes,
        bounds: Bounds,
        power: Sequence[float] | None = None,
        dead_band: float = DEAD_BAND,
        smoothing: float = SMOOTHING,
        window: int = SETTLE,
    ) -> None:
        if not (dead_band >= 0 and 0 < smoothing <= 1 and window >= 1):
            raise InputError(
                f"dynamic batching: dead-band {dead_band:g}, smoothing {smoothing:g}, window {window}: "
                f"need at least 0, within (0, 1], at least 1"
            )
        self._start, self._power = start, power
        self._bounds, self._dead_band, self._smoothing, self._window = bounds, dead_band, smoothing, window
        self._sizes: Sizes | None = None  # sizes of the iterations that the average covers
        self._smoothed_s = np.zeros(len(bounds.least))
        self._count = 0
        self._raised: dict[int, tuple[int, float]] = {}  # worker -> size and throughput before its size was raised

    @property
    def bounds(self) -> Bounds:
        """The present bounds, with those that were learnt."""
        return self._bounds

    def begin(self) -> SizeDecision:
        return OpenLoop(self._start, self._bounds, self._power).begin()

    def update(self, observations: Sequence[Observation]) -> SizeDecision:
        present = observed_sizes(observations, self._bounds)
        self._average(present, observed_times(observations))
        if self._count < self._window:
            return SizeDecision(None, "times are being averaged")
        throughput = np.array(present) / self._smoothed_s
        learnt = self._learn(throughput)
        sizes = apportion(throughput, self._bounds)
        if sizes == present:
            return SizeDecision(None, "balanced" + learnt)
        change = np.abs(np.array(sizes) / np.array(present) - 1)
        if self._bounds.keeps(present) and change.max() <= self._dead_band:
            return SizeDecision(None, "within the dead-band" + learnt)
        grown = [worker for worker, (new, old) in enumerate(zip(sizes, present, strict=True)) if new > old]
        self._raised = {worker: (present[worker], float(throughput[worker])) for worker in grown}
        return SizeDecision(sizes, "in proportion to smoothed throughput" + learnt)

    def _average(self, present: Sizes, times_s: Floats) -> None:
        """Update mu, the smoothed times of the iterations with the present sizes."""
        if present != self._sizes:
            self._sizes, self._smoothed_s, self._count = present, times_s, 1
            return
        self._smoothed_s = self._smoothing * times_s + (1 - self._smoothing) * self._smoothed_s
        self._count += 1

    def _learn(self, throughput: Floats) -> str:
        """Lower the upper bounds of workers that a larger batch made slower; returns an addition to the reason."""
        most, refused = list(self._bounds.most), []
        for worker, (size_before, throughput_before) in sorted(self._raised.items()):
            if throughput[worker] >= (1 - DROP) * throughput_before:
                continue
            lower = [*most[:worker], min(most[worker], size_before), *most[worker + 1 :]]
            if sum(lower) >= self._bounds.total and self._is_worth(worker, throughput_before, throughput, lower):
                most = lower
            else:
                refused.append(str(worker))
        self._raised = {}
        self._bounds = Bounds(self._bounds.total, self._bounds.least, tuple(most))
        return f"; above its best size, for want of others as fast: worker {listed(refused)}" if refused else ""

    def _is_worth(self, worker: int, before: float, throughput: Floats, most: list[int]) -> bool:
        """Whether the bounds `most` make the next iteration no longer, if they make the worker as fast again as `before`."""
        bounded = throughput.copy()
        bounded[worker] = before
        with_bound = apportion(bounded, Bounds(self._bounds.total, self._bounds.least, tuple(most)))
        without = apportion(throughput, self._bounds)
        return bool((np.array(with_bound) / bounded).max() <= (np.array(without) / throughput).max())
