"""A model trained by each way of parallelism, simulated: data, model and hybrid parallelism, and Fela with its tuner."""

from collections.abc import Sequence
from dataclasses import replace

from nalb.simulation.profiles import Profile, SubModel
from nalb.simulation.tokens import Machines, Simulated, Sleep, simulate
from nalb.tokens.network_aware import NetworkAware
from nalb.tokens.policies import Policy, data_parallel, fela, hybrid_parallel, model_parallel
from nalb.tokens.server import TokenServer
from nalb.tokens.shape import Shape
from nalb.tokens.tuning import ITERATIONS, Configuration, Members, Tuner

MICRO_BATCH = 16  # samples, of model parallelism: SM-1 of VGG19 computes at full speed
BASELINES = ("dp", "mp", "hp")


def train(
    parallel: str,
    profile: Profile,
    machines: Machines,
    total: int,
    iterations: int,
    sleep: Sleep | None = None,
    micro_batch: int = MICRO_BATCH,
) -> Simulated:
    """By one of BASELINES. Raises InputError."""
    workers = machines.workers
    if parallel == "dp":
        sub_models: Sequence[SubModel] = profile.whole
        policy, shape = data_parallel(workers, total)
    elif parallel == "hp":
        sub_models = profile.sub_models
        policy, shape = hybrid_parallel(workers, total, len(sub_models))
    else:
        stages = min(workers, len(profile.layers))
        sub_models = profile.stages(stages, micro_batch)
        policy, shape = model_parallel(workers, total, stages, max(round(total / micro_batch), 1))
    return simulate(machines, sub_models, TokenServer(workers, shape, policy), iterations, sleep)


def train_fela(
    profile: Profile,
    machines: Machines,
    total: int,
    configuration: Configuration,
    iterations: int,
    sleep: Sleep | None = None,
    with_policy: "dict[str, bool] | None" = None,
    staleness: int = 0,
    aware: bool = True,
) -> Simulated:
    """Fela with this configuration. with_policy: fields of Policy that are not as usual, for ablations.

    aware: it knows the network (network_aware.py); else by the paper's rules.
    """
    shape, policy = fela_of(profile, machines.workers, total, configuration)
    if with_policy:
        policy = replace(policy, **with_policy)  # type: ignore[arg-type]
    server = TokenServer(machines.workers, shape, policy, staleness)
    links = machines.capacities
    knows = NetworkAware(server, lambda: (links.up.tolist(), links.down.tolist())) if aware else None
    return simulate(machines, profile.sub_models, server, iterations, sleep, staleness, knows)


def fela_of(profile: Profile, workers: int, total: int, configuration: Configuration) -> tuple[Shape, Policy]:
    """What the token server is made of."""
    shape = Shape.of(total, workers, configuration.weights, profile.threshold)
    return shape, fela(workers, len(configuration.weights), configuration.subset)


def tune(profile: Profile, machines: Machines, total: int, members: Members = range) -> Tuner:
    """All cases of the tuner, each for its iterations."""
    tuner = Tuner(machines.workers, len(profile.sub_models), total, profile.threshold, members)
    while not tuner.is_done:
        run = train_fela(profile, machines, total, tuner.configuration, ITERATIONS)
        for _ in range(ITERATIONS):
            tuner.observe(run.iteration_s())
    return tuner
