"""The interface of controllers, which choose batch sizes: an iteration's observations in, a Decision out.

A controller's state is what it has learnt from observations; it uses no clock, thread or process. It starts from the sizes that
were *observed*, so it gives the same answer again when it is asked before its last answer has taken effect. Reasons carry names,
not measured numbers, so that they change only when the kind of decision does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from nalb.batching.sizes import Bounds, Sizes
from nalb.errors import InputError
from nalb.planning.nodes import Floats


@dataclass(frozen=True)
class Observation:
    """One worker's last iteration, and its report of its machine. Raises InputError for values that cannot be."""

    batch_size: int  # samples that the worker computed
    compute_s: float  # from the first forward operation to the last gradient, without waiting and transfer
    cpu_share: float = 1.0  # part of the machine's CPU time that is left for the worker now, 0 to 1
    memory_share: float = 0.0  # part in use now, 0 to 1, of the memory that limits it (the GPU's, else the machine's)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"observation: a batch of {self.batch_size}: report what was computed, at least 1 sample")
        if not (np.isfinite(self.compute_s) and self.compute_s > 0):
            raise InputError(f"observation: {self.compute_s:g} s of computing: report a positive time")
        for name, share in (("CPU", self.cpu_share), ("memory", self.memory_share)):
            if not 0 <= share <= 1:
                raise InputError(f"observation: {name} share {share:g} is not between 0 and 1: divide by the whole")

    @property
    def speed(self) -> float:
        """Samples per second: v = x / t (Chen et al., Algorithm 1, line 2)."""
        return self.batch_size / self.compute_s


class SizeDecision(NamedTuple):
    """The batch sizes of the next iteration, and the reason for them."""

    sizes: Sizes | None  # per worker, adding up to the total; None: the present sizes stay
    reason: str
    remove: int | None = None  # a worker without which the job would be faster


class Controller(Protocol):
    """Chooses batch sizes. Both methods raise InputError for observations that do not fit the job."""

    def begin(self) -> SizeDecision:
        """The first sizes; None: those that the workers were started with."""
        ...

    def update(self, observations: Sequence[Observation]) -> SizeDecision:
        """The sizes after an iteration, one observation per worker in worker order."""
        ...


def observed_sizes(observations: Sequence[Observation], bounds: Bounds) -> Sizes:
    """The sizes that the workers computed. Raises InputError unless there is one per worker and they add up to the total."""
    if len(observations) != len(bounds.least):
        raise InputError(f"{len(observations)} observations for {len(bounds.least)} workers: give one per worker")
    sizes = tuple(observation.batch_size for observation in observations)
    if sum(sizes) != bounds.total:
        raise InputError(f"workers computed {sum(sizes)} samples, the total is {bounds.total}: report one iteration")
    return sizes


def observed_times(observations: Sequence[Observation]) -> Floats:
    """Compute seconds per worker, shape (N,)."""
    return np.array([observation.compute_s for observation in observations])


def settle(present: Sizes, sizes: Sizes, reason: str) -> SizeDecision:
    """A decision for `sizes`; its sizes are None where they equal the present ones."""
    return SizeDecision(None if sizes == present else sizes, reason)
