"""Seeded speeds of a worker that lives on a machine's leftovers, with what it would report of CPU and memory.

The model, chosen before any predictor was run on it, from what Chen et al. say of their Cluster-B (5.3) and show in Fig. 11:

- Other tasks come and go on the machine: Poisson arrivals, log-normal lifetimes (most are short, a few long, as in
  cluster traces), each with a fixed demand of CPU and memory. Their coming and going are the level shifts: one about every
  30 iterations. They begin at any moment, also within an iteration, when no report can tell of them yet.
- CPU: the worker computes with what is left, its speed is proportional to that.
- Memory: no effect while there is room. Above 0.8 the machine swaps; at 1 half of the speed is left.
- Spikes: 2 in 100 iterations something that neither CPU nor memory shows (disk, heat, a page cache gone) takes 10 to
  50 % of the speed. With 3 % noise beside them they are what no predictor can foresee.
- Reports are snapshots between two iterations, with the sampling error of such figures.

Left out: demands that vary within a task, days and nights, the worker's own effect on the others, and that an iteration
lasts longer on a slow machine (all time here is counted in iterations).
"""

from dataclasses import dataclass

import numpy as np

from nalb.errors import InputError
from nalb.planning.nodes import Floats

TASKS = 1.5  # that share the machine, on average
LIFETIME, LIFETIME_SPREAD = 30.0, 1.5  # iterations (median), and the standard deviation of its logarithm
CPU_DEMAND = (0.1, 0.5)  # of the machine's CPU, one task
MEMORY_DEMAND = (0.05, 0.35)  # of its memory
OWN_MEMORY = 0.3  # what the worker itself uses
LEAST_CPU = 0.15  # the worker's fair share on a machine that is overrun
SWAP_FROM, SWAP_LOSS = 0.8, 0.5  # memory in use; part of the speed lost when all of it is
SPIKE_CHANCE, SPIKE_LOSS = 0.02, (0.1, 0.5)  # per iteration; part of the speed lost
NOISE = 0.03  # standard deviation of the speed's logarithm
CPU_ERROR, MEMORY_ERROR = 0.02, 0.005  # standard deviations of what is reported

MEAN_LIFETIME = LIFETIME * float(np.exp(LIFETIME_SPREAD**2 / 2))
HISTORY = 2000.0  # iterations before the first in which a task may have begun: longer than nearly all last


@dataclass(frozen=True)
class Trace:
    """One worker over K iterations."""

    speed: Floats  # samples per second in iteration k, shape (K,)
    cpu_share: Floats  # left for the worker, reported before iteration k, shape (K + 1,)
    memory_share: Floats  # in use, reported before iteration k, shape (K + 1,)
    foreseeable: Floats  # expected speed, knowing the model and the true resources as iteration k begins, shape (K,)


def trace(fastest: float, iterations: int, generator: np.random.Generator) -> Trace:
    """A trace of a worker that makes `fastest` samples per second on an idle machine.

    v_k = fastest * cpu_k * swap(memory_k) * (1 - spike_k) * exp(noise_k), with cpu and memory averaged over iteration k.
    Cost: O(iterations * tasks). Raises InputError for a speed or a number of iterations that is not positive.
    """
    if not (np.isfinite(fastest) and fastest > 0 and iterations > 0):
        raise InputError(f"trace of {iterations} iterations at {fastest:g} samples/s: both must be positive")
    span = HISTORY + iterations
    tasks = generator.poisson(TASKS / MEAN_LIFETIME * span)
    begin = generator.uniform(-HISTORY, iterations, tasks)[:, None]
    end = begin + generator.lognormal(np.log(LIFETIME), LIFETIME_SPREAD, tasks)[:, None]
    demand = np.stack([generator.uniform(*CPU_DEMAND, tasks), generator.uniform(*MEMORY_DEMAND, tasks)])
    starts = np.arange(iterations + 1, dtype=np.float64)
    now = demand @ ((begin <= starts) & (starts < end))  # as iteration k begins, shape (2, K + 1)
    during = demand @ np.clip(np.minimum(end, starts[:-1] + 1) - np.maximum(begin, starts[:-1]), 0, 1)

    spike = (generator.random(iterations) < SPIKE_CHANCE) * generator.uniform(*SPIKE_LOSS, iterations)
    noise = np.exp(NOISE * generator.standard_normal(iterations))
    usual = (1 - SPIKE_CHANCE * sum(SPIKE_LOSS) / 2) * float(np.exp(NOISE**2 / 2))
    cpu_error = CPU_ERROR * generator.standard_normal(iterations + 1)
    memory_error = MEMORY_ERROR * generator.standard_normal(iterations + 1)
    return Trace(
        speed=fastest * _pace(*during) * (1 - spike) * noise,
        cpu_share=np.clip(_cpu_left(now[0]) + cpu_error, 0, 1),
        memory_share=np.clip(_memory_in_use(now[1]) + memory_error, 0, 1),
        foreseeable=fastest * _pace(*now[:, :-1]) * usual,
    )


def _cpu_left(demand: Floats) -> Floats:
    return np.maximum(1 - demand, LEAST_CPU)


def _memory_in_use(demand: Floats) -> Floats:
    return np.minimum(OWN_MEMORY + demand, 1.0)


def _pace(cpu_demand: Floats, memory_demand: Floats) -> Floats:
    """The part of its fastest speed that a worker reaches beside these demands."""
    swapping = np.maximum(_memory_in_use(memory_demand) - SWAP_FROM, 0) / (1 - SWAP_FROM)
    return np.asarray(_cpu_left(cpu_demand) * (1 - SWAP_LOSS * swapping), dtype=np.float64)
