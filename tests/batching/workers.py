"""Simulated workers with seeded speeds, and the loop in which a controller meets them."""

from collections.abc import Callable, Sequence

import numpy as np

from nalb.batching.decisions import Controller, Observation, SizeDecision
from nalb.batching.sizes import Sizes

Times = Callable[[np.ndarray, int], np.ndarray]  # sizes, iteration -> compute seconds per worker


def observe(sizes: Sequence[int], times_s: Sequence[float], **shares: float) -> list[Observation]:
    return [Observation(int(size), float(time), **shares) for size, time in zip(sizes, times_s, strict=True)]


def proportional(speeds: Sequence[float], noise: float = 0.0, seed: int = 0) -> Times:
    """Time in proportion to the batch; `noise` is the standard deviation of the relative error, cut at three."""
    generator = np.random.default_rng(seed)

    def times(sizes: np.ndarray, _iteration: int) -> np.ndarray:
        error = np.clip(generator.normal(0, 1, len(speeds)), -3, 3) * noise
        return sizes / np.array(speeds) * (1 + error)

    return times


def affine(overheads_s: Sequence[float], per_sample_s: Sequence[float]) -> Times:
    return lambda sizes, _iteration: np.array(overheads_s) + np.array(per_sample_s) * sizes


def train(
    controller: Controller, sizes: Sizes, times: Times, iterations: int
) -> tuple[list[np.ndarray], list[Sizes], list[SizeDecision]]:
    """Per iteration: the workers' times, the sizes that they ran with, and the decision that followed."""
    seen, ran, decisions = [], [], []
    for iteration in range(iterations):
        now = times(np.array(sizes, dtype=float), iteration)
        decision = controller.update(observe(sizes, now))
        seen.append(now)
        ran.append(sizes)
        decisions.append(decision)
        sizes = decision.sizes or sizes
    return seen, ran, decisions
