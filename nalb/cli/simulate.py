"""`nalb simulate`: computes the time of a synchronisation or an iteration by a fluid model; no job runs and nothing is sent."""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from rich.markup import escape
from rich.progress import track
from rich.table import Table

from nalb import workloads
from nalb.cli.flags import (
    HIGH_ALPHA_BYTES,
    HIGH_MODEL_BYTES,
    OWN_HELP,
    links_of,
    name_of,
    of_levels,
    parse_names,
    parse_number,
    tensors_of,
)
from nalb.compare.progress import new_console, table_text
from nalb.compare.variants import ONE_LEVEL
from nalb.errors import InputError, did_you_mean
from nalb.extensions import ESTIMATOR_GROUP, SCHEME_GROUP, estimators_with, is_own, load_scheme
from nalb.measurement.estimators import ESTIMATORS
from nalb.planning.explanation import explain_precisions
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.nodes import Capacities, Node
from nalb.planning.precisions import ASKED, AUTO_PRECISION, STEPS, PrecisionModel, asked_for, cut_for
from nalb.planning.shares import bound_s, level_bounds_s
from nalb.reporting.run_file import median_s, ratio, read_events, read_run, steady
from nalb.schemes import Scheme
from nalb.simulation.comparison import Setting, times_by_flows, times_by_slices
from nalb.simulation.exchange import WITH_HEADERS, MessageWeight
from nalb.simulation.families import uniform_network
from nalb.simulation.job import SCHEMES
from nalb.simulation.parallel import side_by_side
from nalb.simulation.profiles import PROFILES
from nalb.simulation.recorded import Medians, median_error, simulate_events
from nalb.simulation.tokens import Machines
from nalb.tokens.policies import PARALLELS
from nalb.tokens.shape import read_weights
from nalb.tokens.stragglers import FORMS, Stragglers
from nalb.units import mbps_to_bytes_per_s

SLICES_UP_TO = 16  # nodes up to which --by auto simulates slices; with more nodes slices take minutes
HIGH_NODES = 100_000
HIGH_MBPS = 1e9
PAPER_WORKERS, PAPER_MBPS = 8, 10_000.0  # the workers and rate of --parallel without a network, from Geng et al.
PARALLEL_FLAGS = ("model", "total", "weights", "subset", "apart", "stragglers", "iterations", "jitter")
ESTIMATORS_HELP = f"of capacities: {', '.join(ESTIMATORS)}{OWN_HELP}; default: the true ones"
DEFAULTS = {  # the defaults of flags that --run does not accept
    "model_bytes": None,
    "replay": None,
    "schemes": ",".join(SCHEMES),
    "estimator": "true",
    "rounds": 10,
    "inflight_bytes": None,
    "alpha_bytes": str(FIRST_ALPHA_BYTES),
    "by": "auto",
    "precision": STEPS[0],
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--network",
        metavar="NETWORK",
        help="network file, or the name of a carried one; rates at 0 s",
    )
    parser.add_argument("--random", metavar="N:LOW-HIGH:SEED", help="N nodes, rates drawn evenly, Mbit/s")
    parser.add_argument("--run", metavar="DIR", help="simulate what a run directory of `nalb compare` did, and compare")
    parser.add_argument("--model-bytes", metavar="B", help="bytes of all gradients")
    parser.add_argument("--replay", choices=workloads.NAMES, help="take the model's tensors from a carried workload")
    parser.add_argument(
        "--schemes", help=f"comma-separated (default: all); {ONE_LEVEL} behind one: on one level, in a network of sites"
    )
    parser.add_argument(
        "--estimator",
        type=name_of(("true", *ESTIMATORS), ESTIMATOR_GROUP),
        metavar="E",
        help=ESTIMATORS_HELP,
    )
    parser.add_argument("--rounds", type=int, help="synchronisations of a scheme that learns (default: 10)")
    parser.add_argument(
        "--inflight-bytes", metavar="W", help="of a worker under way at a time; 0: all; default: as nalb does"
    )
    parser.add_argument("--alpha-bytes", metavar="A", help="cost of a slice (default: 1000, as jobs begin)")
    parser.add_argument(
        "--precision", choices=ASKED, help="of gradients on their way (default: float32); docs/precision.md"
    )
    parser.add_argument("--message-bytes", metavar="B", default="0", help="what every message costs beside its bytes")
    parser.add_argument("--no-headers", action="store_true", help="links carry payload alone")
    parser.add_argument(
        "--by", choices=("auto", "slices", "flows"),
        help=f"slice by slice, or whole flows (default: slices up to {SLICES_UP_TO} nodes)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_parallel_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Simulate as the flags ask and print the times. Raises InputError."""
    if args.parallel is not None or any(vars(args)[name] is not None for name in PARALLEL_FLAGS):
        return _simulate_parallel(args)
    message_bytes = parse_number("--message-bytes", args.message_bytes, HIGH_ALPHA_BYTES, low=0)
    wire = MessageWeight(1.0 if args.no_headers else WITH_HEADERS.goodput_part, message_bytes)
    if sum(map(bool, (args.network, args.random, args.run))) != 1:
        raise InputError("give exactly one of --network, --random and --run")
    given = {name: value for name in DEFAULTS if (value := vars(args)[name]) is not None}
    if args.run:
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"--run simulates what the run did: leave out {flags}")
        return _simulate_run(args, wire)
    vars(args).update(DEFAULTS | given)
    schemes = _parse_schemes(args.schemes)
    estimator = None if args.estimator == "true" else estimators_with(args.estimator)[args.estimator]
    if not 1 <= args.rounds <= 1000:
        raise InputError(f"--rounds {args.rounds}: choose 1 to 1000")
    nodes, capacities = _network(args)
    tensors = tensors_of(args.replay, args.model_bytes)
    model_bytes = sum(tensor.size_bytes for tensor in tensors)
    bound = bound_s(nodes, model_bytes, capacities)
    flows = args.by == "flows" or (args.by == "auto" and len(nodes) > SLICES_UP_TO and capacities.uplinks is None)
    if flows and (args.estimator != "true" or wire.message_bytes or given.keys() & {"alpha_bytes", "inflight_bytes"}):
        flags = "--estimator, --message-bytes, --alpha-bytes and --inflight-bytes"
        raise InputError(f"{flags} need slices: give --by slices, or leave them out")
    if args.precision == AUTO_PRECISION and estimator is not None:
        raise InputError(f"--precision {AUTO_PRECISION} is simulated with true capacities: leave out --estimator")
    precisions = asked_for(args.precision, nodes, tensors, capacities)
    is_rounded = args.precision != STEPS[0]
    rounded, cut = precisions.on(nodes, tensors), cut_for(tensors, precisions.answers)
    rounded_bound_s = bound_s(rounded, sum(tensor.size_bytes for tensor in cut), capacities)
    setting = Setting(rounded, cut, capacities, args.rounds, estimator, *_slice_flags(args), wire)
    if not flows and len(nodes) > SLICES_UP_TO:
        print(f"nalb simulate: {len(nodes)} nodes slice by slice: this can take minutes", file=sys.stderr)
    console = new_console(to_stderr=True)
    no_bar = not console.is_terminal  # elsewhere it would be an empty line
    times_s = {
        name: (times_by_flows if flows else times_by_slices)(scheme, setting)
        for name, scheme in track(schemes.items(), "simulating", console=console, transient=True, disable=no_bar)
    }
    by = "flows" if flows else "slices"
    medians_s = {name: median_s(times) for name, times in times_s.items()}
    if args.json:
        told = {"nodes": len(nodes), "model_bytes": model_bytes, "bound_s": bound, "by": by}
        if capacities.uplinks is not None:
            told |= dict(
                zip(("wan_bound_s", "lan_bound_s"), level_bounds_s(nodes, model_bytes, capacities), strict=True)
            )
        if is_rounded:
            told |= {
                "answers": precisions.answers,
                "pushes": list(precisions.pushes),
                "rounded_bound_s": rounded_bound_s,
            }
        rows = {
            name: {
                "time_s": time_s,
                "over_bound": time_s / rounded_bound_s if rounded_bound_s else None,
                "times_s": times_s[name],
            }
            for name, time_s in medians_s.items()  # null without a bound, since JSON has no NaN
        }
        print(json.dumps(told | {"schemes": rows}))
        return 0
    of_bound = f"bound with {STEPS[0]}" if is_rounded else "bound"
    title = f"{model_bytes / 1e6:.1f} MB, {len(nodes)} nodes, by {by}; lossless {of_bound} {bound:.4g} s"
    table = Table("scheme", "time s", "x bound", title=title)
    for name, time_s in medians_s.items():
        table.add_row(name, f"{time_s:.4g}", f"{ratio(time_s, rounded_bound_s):.3f}")
    print(table_text(table))
    if is_rounded:
        print(f"bound with these precisions {rounded_bound_s:.4g} s: x bound is against it")
        print("\n".join(explain_precisions(PrecisionModel(nodes, tensors, capacities), precisions)))
    if args.replay is None and any(scheme.routes_itself for scheme in schemes.values()):
        print(
            "--model-bytes is one tensor, which MXNet too cuts into equal parts: --replay shows how it spreads a model's own"
        )
    if capacities.uplinks is not None:
        print(f"{of_bound}: {of_levels(*level_bounds_s(nodes, model_bytes, capacities))}")
    return 0


def _add_parallel_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ways to share out a model that is trained, computing included")
    group.add_argument("--parallel", metavar="P[,P...]", help=f"simulate these: {', '.join(PARALLELS)}, or all")
    group.add_argument("--model", choices=tuple(PROFILES), help="on K40c (default: vgg19)")
    group.add_argument(
        "--total", type=int, metavar="N", help="samples of an iteration, over all workers (default: 256)"
    )
    group.add_argument("--weights", metavar="1,W,...", help="of fela's sub-models (default: tuned)")
    group.add_argument("--subset", type=int, metavar="N", help="workers that compute fela's last sub-model")
    group.add_argument(
        "--apart", action="store_true", default=None, help="the subset computes the last sub-model alone"
    )
    group.add_argument("--stragglers", metavar="S", help=f"workers that sleep: {FORMS}")
    group.add_argument("--iterations", type=int, metavar="N", help="default: 10")
    group.add_argument(
        "--jitter", type=float, metavar="J", help="deviation of computing times' logarithms (default: 0)"
    )


def _simulate_parallel(args: argparse.Namespace) -> int:
    if args.parallel is None:
        flags = ", ".join(f"--{name}" for name in PARALLEL_FLAGS if vars(args)[name] is not None)
        raise InputError(f"{flags}: of models that are trained in parts: add --parallel, or leave it out")
    if args.run or (args.network and args.random) or any(vars(args)[name] is not None for name in DEFAULTS):
        raise InputError("--parallel takes --network or --random, or eight workers of 10 Gbit/s: leave out the others")
    machines = Machines.equal(PAPER_WORKERS, mbps_to_bytes_per_s(PAPER_MBPS))
    if args.network or args.random:
        nodes, capacities = _network(args)
        if odd := next((node for node in nodes if not (node.is_worker and node.is_server)), None):
            raise InputError(
                f"--parallel: {odd.name} has one role: give a network whose nodes are all worker and server"
            )
        machines = Machines(capacities)
    machines = replace(machines, jitter=args.jitter or 0.0)
    profile, total = PROFILES[args.model or "vgg19"](), 256 if args.total is None else args.total
    iterations = 10 if args.iterations is None else args.iterations
    rows = side_by_side(
        PARALLELS if args.parallel == "all" else parse_names("--parallel", args.parallel),
        profile,
        machines,
        total,
        iterations,
        Stragglers.read(args.stragglers).sleep_s if args.stragglers else None,
        read_weights(args.weights) if args.weights else None,
        args.subset,
        bool(args.apart),
    )
    if args.json:
        told = {
            name: {"iteration_s": run.iteration_s(), "ends_s": run.ends_s, "tokens": run.tokens, "helped": run.helped,
                   "fetched_bytes": run.fetched_bytes, "reason": reason}
            for name, (run, reason) in rows.items()
        }  # fmt: skip
        print(json.dumps({"model": profile.name, "workers": machines.workers, "total": total, "parallel": told}))
        return 0
    table = Table("", "iteration s", "samples/s", "helped with", "fetched MB")
    table.title = f"{profile.name}, {machines.workers} workers, {total} samples"
    for name, (run, _) in rows.items():
        seconds, fetched_mb = run.iteration_s(), run.fetched_bytes / 1e6 / iterations
        row = f"{seconds:.4g}", f"{total / seconds:.4g}", f"{run.helped / run.tokens:.0%}", f"{fetched_mb:.4g}"
        table.add_row(name, *row)
    print(table_text(table))
    for name, (_, reason) in rows.items():
        if reason:
            print(f"{name}: {reason}")
    return 0


def _slice_flags(args: argparse.Namespace) -> tuple[float, float | None]:
    """The values of --alpha-bytes and --inflight-bytes in bytes; None where the latter is not given."""
    alpha_bytes = parse_number("--alpha-bytes", args.alpha_bytes, HIGH_ALPHA_BYTES)
    if args.inflight_bytes is None:
        return alpha_bytes, None
    return alpha_bytes, parse_number("--inflight-bytes", args.inflight_bytes, HIGH_MODEL_BYTES, low=0)


def _network(args: argparse.Namespace) -> tuple[list[Node], Capacities]:
    if args.network:
        return links_of(args.network)
    try:
        count, rates, number = args.random.split(":")
        low, high = map(float, rates.split("-"))
        nodes, seed = int(count), int(number)
        if seed < 0:
            raise ValueError(seed)
    except ValueError:
        raise InputError(f"--random {args.random!r}: write N:LOW-HIGH:SEED, such as 12:20-220:1") from None
    if not (1 <= nodes <= HIGH_NODES and 0 < low <= high <= HIGH_MBPS):
        raise InputError(f"--random {args.random!r}: 1 to {HIGH_NODES} nodes, rates above 0, the lower one first")
    return uniform_network(nodes, low, high, seed)


def _parse_schemes(text: str) -> dict[str, Scheme]:
    """The schemes that --schemes names, in order. Raises InputError for schemes that cannot be simulated."""
    names = parse_names("--schemes", text)
    schemes = {}
    for word in names:
        name = word.removesuffix(ONE_LEVEL)
        if name not in SCHEMES and not is_own(name, SCHEME_GROUP):
            raise InputError(
                f"--schemes: {name!r} cannot be simulated: {did_you_mean(name, SCHEMES)}choose of {', '.join(SCHEMES)}, "
                "or your own, package.module:NAME"
            )
        scheme = SCHEMES[name] if name in SCHEMES else load_scheme(name)
        if word != name and not scheme.sums_by_sites:
            raise InputError(f"--schemes {word!r}: {name} has one level anyway: leave out {ONE_LEVEL}")
        schemes[word] = scheme if word == name else replace(scheme, sums_by_sites=False)
    return schemes


def _simulate_run(args: argparse.Namespace, wire: MessageWeight) -> int:
    """Simulate a run's iterations and print the simulated and measured times of each scheme."""
    run_dir = Path(args.run)
    run = read_run(run_dir)
    if run.bound_s is None:
        raise InputError(
            f"{run_dir} ran on {run.network}, whose rates no file tells: give a run of an emulated network"
        )
    compared = simulate_events(read_events(run_dir), wire)
    each = {scheme: steady([one for one in compared if one.scheme == scheme]) for scheme in run.schemes}
    counted = {scheme: ours for scheme, ours in each.items() if ours}  # p3 is not simulated
    if not counted:
        raise InputError(f"{run_dir / 'samples.jsonl'}: no iteration to simulate: give a run of `nalb compare`")
    rows = {scheme: Medians.of(ours) for scheme, ours in counted.items()}
    judged = [one for ours in counted.values() for one in ours]
    if args.json:
        told = {scheme: asdict(row) for scheme, row in rows.items()}
        iterations = [asdict(one) for one in compared]
        print(json.dumps({"schemes": told, "median_error": median_error(judged), "iterations": iterations}))
        return 0
    table = Table("scheme", "measured s", "simulated s", "simulated / measured", title=escape(str(run_dir)))
    for scheme, row in rows.items():
        part = ratio(row.simulated_s, row.measured_s)
        table.add_row(scheme, f"{row.measured_s:.3f}", f"{row.simulated_s:.3f}", f"{part:.3f}")
    print(table_text(table))
    print(f"median error of {len(judged)} iterations: {median_error(judged):.1%}")
    return 0
