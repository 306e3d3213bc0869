"""Simulates trainings of a model by each way of parallelism: Fela with its tuner, and data, model and hybrid parallelism."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nalb.errors import InputError
from nalb.simulation.profiles import Profile
from nalb.simulation.tokens import Machines, Simulated, Sleep, simulate
from nalb.tokens.network_aware import NetworkAware
from nalb.tokens.policies import (
    FELA,
    FELAS,
    PARALLELS,
    conflict,
    data_parallel,
    fela_shape,
    hybrid_parallel,
    model_parallel,
)
from nalb.tokens.server import TokenServer
from nalb.tokens.tuning import PHASES, Configuration, Tuner

WORKERS_MOST, SAMPLES_MOST, ITERATIONS_MOST = 1000, 1_000_000, 1000
TUNING = 400  # iterations: enough for eight workers, also if jitter makes the tuner try the fastest cases again
MICRO_BATCH = 16  # samples of a micro-batch of model parallelism, at which SM-1 of VGG19 computes at full speed


def train(
    parallel: str,
    profile: Profile,
    machines: Machines,
    total: int,
    iterations: int,
    sleep: Sleep | None = None,
    micro_batch: int = MICRO_BATCH,
) -> Simulated:
    """Simulate a training by data ("dp"), hybrid ("hp") or model parallelism ("mp"). total: samples of an iteration.

    micro_batch: samples of a micro-batch of "mp". Raises InputError.
    """
    workers, sub_models = machines.workers, profile.sub_models
    if parallel == "dp":
        sub_models = profile.whole
        policy, shape = data_parallel(workers, total)
    elif parallel == "hp":
        policy, shape = hybrid_parallel(workers, total, len(sub_models))
    else:
        sub_models = profile.stages(min(workers, len(profile.layers)), micro_batch)
        policy, shape = model_parallel(workers, total, len(sub_models), max(round(total / micro_batch), 1))
    return simulate(machines, sub_models, TokenServer(workers, shape, policy), iterations, sleep)


def train_fela(
    profile: Profile,
    machines: Machines,
    total: int,
    configuration: Configuration,
    iterations: int,
    sleep: Sleep | None = None,
    rules: str = FELA,
    without: Sequence[str] = (),
    staleness: int = 0,
) -> Simulated:
    """Simulate Fela with this configuration. total: samples of an iteration. rules: one of FELAS.

    without: fields of Policy that are set to False, for ablations.
    """
    server = fela_server(profile, machines, total, configuration, staleness)
    off: dict[str, Any] = dict.fromkeys(without, False)
    server.configure(server.shape, replace(server.policy, **off))
    aware = advise(server, machines) if rules == FELA else None
    return simulate(machines, profile.sub_models, server, iterations, sleep, staleness, aware)


def tune_fela(
    profile: Profile, machines: Machines, total: int, iterations: int, rules: str = FELA, phases: int | None = None
) -> tuple[Simulated, Tuner]:
    """Simulate `iterations` iterations of Fela that is tuned while it trains. Raises InputError where they do not hold all cases.

    total: samples of an iteration. rules: one of FELAS. phases: of the tuner; None: as in jobs.
    """
    everyone = Configuration((1,) * len(profile.sub_models), tuple(range(machines.workers)))
    server = fela_server(profile, machines, total, everyone)
    aware = advise(server, machines) if rules == FELA else None
    members = range if aware is None else aware.members
    model = len(profile.sub_models), total, profile.threshold
    tuner = Tuner(machines.workers, *model, members, phases=phases or PHASES[rules])
    run = simulate(machines, profile.sub_models, server, iterations, aware=aware, tuner=tuner)
    if not tuner.is_done:
        raise InputError(
            f"{iterations} iterations do not hold all cases of tuning: {tuner.reason} in the last; give more"
        )
    return run, tuner


def fela_server(
    profile: Profile, machines: Machines, total: int, configuration: Configuration, staleness: int = 0
) -> TokenServer:
    """A new token server for this configuration. total: samples of an iteration."""
    policy = configuration.policy(machines.workers)
    shape = fela_shape(policy, machines.workers, total, configuration.weights, profile.threshold)
    return TokenServer(machines.workers, shape, policy, staleness)


def advise(server: TokenServer, machines: Machines) -> NetworkAware:
    """A NetworkAware that advises the server with the links' true rates; it learns how long tokens take."""
    rates = machines.capacities.up.tolist(), machines.capacities.down.tolist()
    return NetworkAware(server, lambda: rates)


def side_by_side(
    ways: Sequence[str],
    profile: Profile,
    machines: Machines,
    total: int,
    iterations: int,
    sleep: Sleep | None = None,
    weights: Sequence[int] | None = None,
    subset: int | None = None,
    is_apart: bool = False,
) -> dict[str, tuple[Simulated, str]]:
    """Simulate each of `ways`, which are PARALLELS; returns by way the training, and how Fela's configuration was found.

    total: samples of an iteration. weights: of Fela; None: weights and subset are tuned first. subset: how many workers of the
    lowest ranks compute the last sub-model; None, with weights: all. is_apart: whether the subset computes nothing else. Raises
    InputError.
    """
    workers = machines.workers
    if not (2 <= workers <= WORKERS_MOST and workers <= total <= SAMPLES_MOST):
        raise InputError(f"{total} samples on {workers} workers: 2 to {WORKERS_MOST} workers, and a sample for each")
    if not (2 <= iterations <= ITERATIONS_MOST and 0 <= machines.jitter <= 1):
        raise InputError(
            f"{iterations} iterations, jitter {machines.jitter:g}: choose 2 to {ITERATIONS_MOST}, and 0 to 1"
        )
    if why := conflict(FELA, weights is not None, subset is not None, 0, is_apart):
        raise InputError(why)
    size = subset or workers
    if weights is not None and (len(weights) != len(profile.sub_models) or not 1 <= size <= workers):
        raise InputError(
            f"weights {list(weights)}, a subset of {size}: give {len(profile.sub_models)} weights, and 1 to {workers}"
        )
    done: dict[str, tuple[Simulated, str]] = {}
    for way in ways:
        if way in FELAS:
            if weights is None:
                tuner = tune_fela(profile, machines, total, TUNING, way)[1]
                configuration, reason = tuner.best, tuner.reason
            else:
                configuration, reason = Configuration(tuple(weights), tuple(range(size)), is_apart), "as asked for"
            done[way] = train_fela(profile, machines, total, configuration, iterations, sleep, way), reason
        elif way in PARALLELS:
            done[way] = train(way, profile, machines, total, iterations, sleep), ""
        else:
            raise InputError(f"{way!r} is no way to share out a model: choose of {', '.join(PARALLELS)}")
    return done
