"""`nalb simulate --parallel`: what an iteration of VGG19 or GoogLeNet would take on K40c, by each way to share out a model."""

import argparse
import json

from rich.console import Console
from rich.table import Table

from nalb.cli.flags import parse_names
from nalb.errors import InputError
from nalb.planning.nodes import Capacities
from nalb.simulation.parallel import train, train_fela, tune_fela
from nalb.simulation.profiles import PROFILES
from nalb.simulation.tokens import Machines, Simulated
from nalb.tokens.policies import FELAS, PARALLELS
from nalb.tokens.shape import read_weights
from nalb.tokens.stragglers import FORMS, Stragglers
from nalb.tokens.tuning import Configuration
from nalb.units import mbps_to_bytes_per_s

WORKERS, MBPS = 8, 10_000.0  # of Geng et al.
HIGH_WORKERS, HIGH_SAMPLES, HIGH_ITERATIONS = 1000, 1_000_000, 1000
TUNING = 100  # iterations: enough for eight workers
FLAGS = ("model", "total", "weights", "subset", "stragglers", "iterations", "jitter")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Those that need --parallel."""
    group = parser.add_argument_group("of --parallel")
    group.add_argument(
        "--parallel", metavar="P[,P...]", help=f"ways to share out a model: {', '.join(PARALLELS)}, or all"
    )
    group.add_argument("--model", choices=tuple(PROFILES), help="default: vgg19")
    group.add_argument(
        "--total", type=int, metavar="N", help="samples of an iteration, over all workers (default: 256)"
    )
    group.add_argument("--weights", metavar="1,W,...", help="of fela's sub-models (default: tuned)")
    group.add_argument(
        "--subset", type=int, metavar="N", help="workers that compute fela's last sub-model (default: all, or tuned)"
    )
    group.add_argument("--stragglers", metavar="S", help=f"workers that sleep: {FORMS}")
    group.add_argument("--iterations", type=int, metavar="N", help="default: 10")
    group.add_argument(
        "--jitter", type=float, metavar="J", help="deviation of the logarithm of computing times (default: 0)"
    )


def main(args: argparse.Namespace, capacities: Capacities | None) -> int:
    """Simulate and print. capacities: None: eight workers with 10 Gbit/s each."""
    if capacities is None:
        rate = mbps_to_bytes_per_s(MBPS)
        capacities = Capacities.from_lists([rate] * WORKERS, [rate] * WORKERS)
    total, iterations, jitter = args.total or 256, args.iterations or 10, args.jitter or 0.0
    workers = len(capacities.up)
    _check(workers, total, iterations, jitter)
    machines = Machines(capacities, jitter=jitter)
    profile = PROFILES[args.model or "vgg19"]()
    sleep = Stragglers.read(args.stragglers).sleep_s if args.stragglers else None
    rows: dict[str, tuple[Simulated, str]] = {}
    for name in PARALLELS if args.parallel == "all" else parse_names("--parallel", args.parallel):
        if name in FELAS:
            configuration, reason = _configuration(args, machines, total, name)
            rows[name] = train_fela(profile, machines, total, configuration, iterations, sleep, name), reason
        elif name in PARALLELS:
            rows[name] = train(name, profile, machines, total, iterations, sleep), ""
        else:
            raise InputError(f"--parallel {name}: choose of {', '.join(PARALLELS)}, or all")
    if args.json:
        told = {
            name: {"iteration_s": run.iteration_s(), "ends_s": run.ends_s, "helped": run.helped, "tokens": run.tokens,
                   "fetched_bytes": run.fetched_bytes, "reason": reason}
            for name, (run, reason) in rows.items()
        }  # fmt: skip
        print(json.dumps({"model": profile.name, "workers": workers, "total": total, "parallel": told}))
        return 0
    table = Table("", "iteration s", "samples/s", "helped with", "fetched MB")
    table.title = f"{profile.name}, {workers} workers, {total} samples"
    for name, (run, _) in rows.items():
        seconds, fetched_mb = run.iteration_s(), run.fetched_bytes / 1e6 / iterations
        row = f"{seconds:.4g}", f"{total / seconds:.4g}", f"{run.helped / run.tokens:.0%}", f"{fetched_mb:.4g}"
        table.add_row(name, *row)
    Console().print(table)
    for name, (_, reason) in rows.items():
        if reason:
            print(f"{name}: {reason}")
    return 0


def _check(workers: int, total: int, iterations: int, jitter: float) -> None:
    if not (2 <= workers <= HIGH_WORKERS and workers <= total <= HIGH_SAMPLES):
        raise InputError(f"{total} samples on {workers} workers: 2 to {HIGH_WORKERS} workers, and a sample for each")
    if not (2 <= iterations <= HIGH_ITERATIONS and 0 <= jitter <= 1):
        raise InputError(f"--iterations {iterations}, --jitter {jitter:g}: choose 2 to {HIGH_ITERATIONS}, and 0 to 1")


def _configuration(args: argparse.Namespace, machines: Machines, total: int, rules: str) -> tuple[Configuration, str]:
    """Fela's, and where it is from."""
    profile = PROFILES[args.model or "vgg19"]()
    if args.weights is None:
        if args.subset is not None:
            raise InputError("--subset needs --weights: give both, or none and they are tuned")
        tuner = tune_fela(profile, machines, total, TUNING, rules)[1]
        return tuner.best, tuner.reason
    weights, size = read_weights(args.weights), args.subset or machines.workers
    if len(weights) != len(profile.sub_models) or not 1 <= size <= machines.workers:
        raise InputError(
            f"--weights {args.weights} --subset {size}: give {len(profile.sub_models)} weights, and 1 to {machines.workers}"
        )
    return Configuration(weights, tuple(range(size))), "as asked for"
