"""LB-BSP (Chen et al., 2021): sizes follow predicted speeds on CPUs, and change step by step on GPUs.

On CPUs time is proportional to the batch, but speeds change all the time. So the balancer predicts speeds and sets all sizes at
once, and the iteration waits for the answer. On GPUs time is not proportional to the batch, but speeds are steady. So the balancer
moves a few samples from the slowest to the fastest worker while their order holds, in the background.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from nalb.batching.decisions import Observation, SizeDecision, observed_sizes, observed_times, settle
from nalb.batching.sizes import Bounds, Sizes, apportion
from nalb.batching.speed import Predictor
from nalb.errors import InputError, listed
from nalb.planning.nodes import Floats

FAST_STEP, FAST_WINDOW = 5, 5  # samples, iterations; Chen et al., Algorithm 2
FINE_STEP, FINE_WINDOW = 1, 20  # samples, iterations, after the first oscillation
SLACK = 0.05  # part of the predicted time: a smaller gain is not worth a framework's set-up for new sizes (ours)
FULL_MEMORY_SHARE = 0.95  # a worker with more memory in use gets no more samples


class SpeedBalancer:
    """Algorithm 1: x_i = X v_i / sum_j v_j with predicted speeds v, rounded with the total kept, within bounds.

    Where a prediction is missing, not finite or not positive (ARIMA extrapolates a line, and a network may give any number), the
    worker's last speed is used, and the reason says so. Present sizes that are at most `slack` slower by the same predictions stay;
    the paper has no slack. Cost: O(N log N) and that of the predictors.
    """

    def __init__(self, bounds: Bounds, predictors: Sequence[Predictor], slack: float = 0.0) -> None:
        if len(predictors) != len(bounds.least):
            raise InputError(f"{len(predictors)} predictors for {len(bounds.least)} workers: give one per worker")
        self._bounds, self._predictors, self._slack = bounds, predictors, slack

    def begin(self) -> SizeDecision:
        return SizeDecision(None, "sizes as started until speeds are seen")

    def foresee(self, observations: Sequence[Observation]) -> tuple[list[float], str]:
        """Let the predictors learn, and predict: samples per second of the coming iteration, per worker, and the reason."""
        speeds, unusable = [], []
        for worker, (observation, predictor) in enumerate(zip(observations, self._predictors, strict=True)):
            predictor.observe_speed(observation.speed, observation.cpu_share, observation.memory_share)
            speed = predictor.predict()
            if speed is None or not np.isfinite(speed) or speed <= 0:
                unusable.append(str(worker))
                speed = observation.speed
            speeds.append(speed)
        reason = "in proportion to predicted speeds"
        if unusable:
            reason += f"; no usable prediction for worker {listed(unusable)}: its last speed"
        return speeds, reason

    def update(self, observations: Sequence[Observation]) -> SizeDecision:
        present = observed_sizes(observations, self._bounds)
        speeds, reason = self.foresee(observations)
        sizes = apportion(speeds, self._bounds)
        if _longest_s(present, speeds) <= (1 + self._slack) * _longest_s(sizes, speeds):
            return SizeDecision(None, "as fast as other sizes would be")
        return settle(present, sizes, reason)


class StepBalancer:
    """Algorithm 2: moves `step` samples from the straggler to the leader once the straggler was slower for `window` iterations.

    leader = argmin t_i among workers with at most 95 % of memory in use (and below their most), straggler = argmax t_i, ties to the
    lower index. If the leader was strictly faster in each of the last `window` iterations, it gets `step` samples. Otherwise, if it
    was slower in any of them, the two have changed places: step and window become 1 and 20 for the rest of the job. A move does not
    empty the window. That is as in the paper, whose Fig. 8 moves 57 samples in about 30 iterations, too many for a fresh window of
    5 after each move.

    Choices where the paper is open or slips:
    - Line 9 looks for an oscillation in the whole history, where any early disturbance counts. The paper's text means an
      oscillation within the window. Here the window is searched, once it is full.
    - Line 5 gives up a straggler of 5 samples or fewer in the fast phase, though it could still give single samples. Here the fine
      phase comes first, and a worker's removal is asked for only when it cannot give one sample and has been the straggler for a
      whole window; the text's condition ("below 0") is the same one.
    Cost: O(N).
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._step, self._window = FAST_STEP, FAST_WINDOW
        self._times: deque[Floats] = deque(maxlen=FINE_WINDOW)

    def begin(self) -> SizeDecision:
        return SizeDecision(None, "sizes as started until times are seen")

    def update(self, observations: Sequence[Observation]) -> SizeDecision:
        present = observed_sizes(observations, self._bounds)
        times = observed_times(observations)
        self._times.append(times)
        has_room = np.array(
            [
                observation.memory_share <= FULL_MEMORY_SHARE and size < most
                for observation, size, most in zip(observations, present, self._bounds.most, strict=True)
            ]
        )
        if not has_room.any():
            return SizeDecision(None, "no worker has room for more samples")
        leader = int(np.argmin(np.where(has_room, times, np.inf)))
        straggler = int(np.argmax(times))
        if len(self._times) < self._window:
            return SizeDecision(None, "observation window not full")
        lead = np.array([past[straggler] - past[leader] for past in list(self._times)[-self._window :]])
        if not (lead > 0).all():
            if (lead < 0).any():
                self._step, self._window = FINE_STEP, FINE_WINDOW
            return SizeDecision(None, "no leader for a whole window")
        spare = present[straggler] - self._bounds.least[straggler]
        if spare < self._step and self._step > FINE_STEP:
            self._step, self._window = FINE_STEP, FINE_WINDOW
            return SizeDecision(None, "straggler too small for the fast step")
        if spare < self._step:
            return SizeDecision(None, f"worker {straggler} is slowest with the least batch: remove it", straggler)
        step = min(self._step, self._bounds.most[leader] - present[leader])
        sizes = list(present)
        sizes[straggler] -= step
        sizes[leader] += step
        return SizeDecision(tuple(sizes), "a step from the straggler to the leader")


def _longest_s(sizes: Sizes, speeds: Sequence[float]) -> float:
    return max(size / speed for size, speed in zip(sizes, speeds, strict=True))
