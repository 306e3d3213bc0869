"""Dynamic Batching (Tyagi and Sharma, 2020): sizes by known power once, or by proportional control all along."""

from collections.abc import Sequence

import numpy as np

from nalb.batching.decisions import Decision, Observation, observed_sizes, observed_times, settle
from nalb.batching.sizes import Bounds, Sizes, apportion
from nalb.errors import InputError, listed
from nalb.planning.nodes import Floats

DEAD_BAND = 0.05  # of a worker's size: smaller changes are not worth a readjustment (their III-C)
SMOOTHING = 0.2  # of the newest time in the moving average; the paper gives no number: LB-BSP's
DROP = 0.05  # of throughput: less of a drop is noise; the paper gives no number: the dead-band's
SETTLE = 5  # iterations averaged before a change; the paper gives no number: LB-BSP's short window


class OpenLoop:
    """Static allocation: b_k = (sum b) X_k / sum_i X_i, once (their III-B).

    X_k: `power`, e.g. CPU cores or half-precision FLOP/s, known before; else the throughput measured over the first
    `window` iterations, samples over seconds. The paper prints b_0 X_k / sum X with b_0 the average size, which would
    add up to b_0: its own next sentence has K b_0. Cost: O(N log N).
    """

    def __init__(
        self, start: Sizes, bounds: Bounds, power: Sequence[float] | None = None, window: int = SETTLE
    ) -> None:
        if window < 1:
            raise InputError(f"open loop: a window of {window} iterations measures nothing: give 1 or more")
        self._start, self._bounds, self._power, self._left = start, bounds, power, window
        self._samples = np.zeros(len(bounds.least))
        self._seconds = np.zeros(len(bounds.least))

    def begin(self) -> Decision:
        if self._power is None:
            return Decision(None, "sizes as started until throughput is measured")
        self._left = 0
        return settle(self._start, apportion(self._power, self._bounds), "in proportion to known power")

    def update(self, observations: Sequence[Observation]) -> Decision:
        present = observed_sizes(observations, self._bounds)
        if self._power is not None or self._left == 0:
            return Decision(None, "set once")
        self._samples += np.array(present)
        self._seconds += observed_times(observations)
        self._left -= 1
        if self._left:
            return Decision(None, "throughput is being measured")
        return settle(present, apportion(self._samples / self._seconds, self._bounds), "in proportion to throughput")


class ProportionalControl:
    """Closed loop: b_k' = b_k - X_k (mu_k - mean mu), X_k = b_k / mu_k, mu_k the time smoothed since the last change.

    That is b_k mean(mu) / mu_k (Eqs. 4 and 5), in their four steps: (1) mu; (2) new sizes; (3) bounds; (4) change all
    of them if max_k |b_k' - b_k| / b_k > 0.05, else none. Where a worker's throughput has dropped since its size was
    raised from b_0, its upper bound becomes b_0.

    Choices where the paper is open or slips:
    - Eq. 5 does not keep the total (sum_k b_k mean/mu_k is above it). Its static policy promises that it is kept: the
      sizes are scaled to it, in whole samples and within bounds, which leaves them in proportion to X_k.
    - Step 4 prints no absolute value, and its text asks for 5 % "on all workers" in one sentence and on any in another:
      any, up or down.
    - Neither smoothing weight nor least number of iterations is given. One iteration would leave nothing to smooth:
      SETTLE of them are averaged before a change.
    - A drop is more than DROP: any noise would be one else. It is judged once after each raise. A disturbance that
      begins just then is taken for one, and nothing in the paper lifts the bound again.
    - Bounds that together could no longer take the total are not learnt, nor those under which, by the throughputs seen,
      the next iteration would be longer than without: the paper wants bounds so that the total throughput does not
      drop. (A busy machine is slower now and then; with a worker of 1/10 of the cores, 7 % less throughput kept the largest
      machine at a third of the samples, and 15 % took all back to equal, four times as slow.) The reason says so.
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
        self._sizes: Sizes | None = None  # of the iterations that the average covers
        self._smoothed_s = np.zeros(len(bounds.least))
        self._count = 0
        self._raised: dict[int, tuple[int, float]] = {}  # worker -> size and throughput before its size was raised

    @property
    def bounds(self) -> Bounds:
        """The bounds in force, learnt ones included."""
        return self._bounds

    def begin(self) -> Decision:
        return OpenLoop(self._start, self._bounds, self._power).begin()

    def update(self, observations: Sequence[Observation]) -> Decision:
        present = observed_sizes(observations, self._bounds)
        self._average(present, observed_times(observations))
        if self._count < self._window:
            return Decision(None, "times are being averaged")
        throughput = np.array(present) / self._smoothed_s
        learnt = self._learn(throughput)
        sizes = apportion(throughput, self._bounds)
        if sizes == present:
            return Decision(None, "balanced" + learnt)
        change = np.abs(np.array(sizes) / np.array(present) - 1)
        if self._bounds.keeps(present) and change.max() <= self._dead_band:
            return Decision(None, "within the dead-band" + learnt)
        grown = [worker for worker, (new, old) in enumerate(zip(sizes, present, strict=True)) if new > old]
        self._raised = {worker: (present[worker], float(throughput[worker])) for worker in grown}
        return Decision(sizes, "in proportion to smoothed throughput" + learnt)

    def _average(self, present: Sizes, times_s: Floats) -> None:
        """mu, over the iterations that ran with these sizes."""
        if present != self._sizes:
            self._sizes, self._smoothed_s, self._count = present, times_s, 1
            return
        self._smoothed_s = self._smoothing * times_s + (1 - self._smoothing) * self._smoothed_s
        self._count += 1

    def _learn(self, throughput: Floats) -> str:
        """Lowers the upper bounds of workers that a larger batch made slower; what the reason shall say of it."""
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
        """Whether the next iteration is no longer with this bound, the worker as fast again as it was, than without."""
        bounded = throughput.copy()
        bounded[worker] = before
        with_bound = apportion(bounded, Bounds(self._bounds.total, self._bounds.least, tuple(most)))
        without = apportion(throughput, self._bounds)
        return bool((np.array(with_bound) / bounded).max() <= (np.array(without) / throughput).max())
