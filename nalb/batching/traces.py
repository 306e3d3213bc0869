"""Draws the speeds of a worker that shares its machine with other tasks, by seed, and its reports of CPU and memory.

The model follows the text of Chen et al. on their Cluster-B (5.3) and their Fig. 11. It was chosen before any predictor ran on it:

- Other tasks come and go on the machine, with Poisson arrivals and log-normal lifetimes (most are short, a few long, as in cluster
  traces). Each has a fixed demand of CPU and memory. Their arrivals and ends are the level shifts, one about every 30 iterations.
  A task may begin within an iteration, before any report can tell of it.
- CPU: the worker computes with the CPU time that is left, and its speed is proportional to that.
- Memory: it has no effect while there is room. Above 0.8 in use the machine swaps; at 1 half of the speed is left.
- Spikes: in 2 of 100 iterations a cause that neither CPU nor memory shows (disk, heat, a lost page cache) takes 10 to 50 % of the
  speed. No predictor can foresee these spikes, nor the noise of 3 %.
- Reports are snapshots between two iterations, with the sampling error of such figures.

Left out: demands that vary within a task, days and nights, the worker's own effect on other tasks, and the longer iterations of a
slow machine (all time here is counted in iterations).
"""

from dataclasses import dataclass

import numpy as np

from nalb.errors import InputError
from nalb.planning.nodes import Floats

TASKS = 1.5  # tasks that share the machine, on average
LIFETIME, LIFETIME_SPREAD = 30.0, 1.5  # a task's iterations (median), and the standard deviation of their logarithm
CPU_DEMAND = (0.1, 0.5)  # part of the machine's CPU that a task takes
MEMORY_DEMAND = (0.05, 0.35)  # part of the machine's memory that a task takes
OWN_MEMORY = 0.3  # part of the memory that the worker itself takes
LEAST_CPU = 0.15  # the worker's fair share of the CPU on an overloaded machine
SWAP_FROM, SWAP_LOSS = 0.8, 0.5  # memory in use from which the machine swaps; part of the speed lost with all in use
SPIKE_CHANCE, SPIKE_LOSS = 0.02, (0.1, 0.5)  # per iteration; part of the speed lost
NOISE = 0.03  # standard deviation of the speed's logarithm
CPU_ERROR, MEMORY_ERROR = 0.02, 0.005  # standard deviations of the reported shares

MEAN_LIFETIME = LIFETIME * float(np.exp(LIFETIME_SPREAD**2 / 2))  # iterations
HISTORY = 2000.0  # iterations before the first one in which tasks may have begun: more than nearly all tasks last


@dataclass(frozen=True)
class SpeedTrace:
    """One worker's speeds and reports over K iterations."""

    speed: Floats  # samples per second in iteration k, shape (K,)
    cpu_share: Floats  # part left for the worker, reported before iteration k, shape (K + 1,)
    memory_share: Floats  # part in use, reported before iteration k, shape (K + 1,)
    foreseeable: Floats  # expected speed by the model and the true resources as iteration k begins, shape (K,)


def trace(fastest: float, iterations: int, generator: np.random.Generator) -> SpeedTrace:
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
    now = demand @ ((begin <= starts) & (starts < end))  # demands as iteration k begins, shape (2, K + 1)
    during = demand @ np.clip(np.minimum(end, starts[:-1] + 1) - np.maximum(begin, starts[:-1]), 0, 1)

    spike = (generator.random(iterations) < SPIKE_CHANCE) * generator.uniform(*SPIKE_LOSS, iterations)
    noise = np.exp(NOISE * generator.standard_normal(iterations))
    usual = (1 - SPIKE_CHANCE * sum(SPIKE_LOSS) / 2) * float(np.exp(NOISE**2 / 2))
    cpu_error = CPU_ERROR * generator.standard_normal(iterations + 1)
    memory_error = MEMORY_ERROR * generator.standard_normal(iterations + 1)
    return SpeedTrace(
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
    """The part of its fastest speed that a worker reaches beside other tasks with these demands."""
    swapping = np.maximum(_memory_in_use(memory_demand) - SWAP_FROM, 0) / (1 - SWAP_FROM)
    return np.asarray(_cpu_left(cpu_demand) * (1 - SWAP_LOSS * swapping), dtype=np.float64)
