"""`nalb simulate`: what one synchronisation or one iteration would take, by a fluid model; nothing runs and nothing is sent."""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from nalb import workloads
from nalb.cli import simulate_parallel
from nalb.cli.flags import (
    HIGH_ALPHA_BYTES,
    HIGH_MODEL_BYTES,
    OWN_HELP,
    name_of,
    parse_names,
    parse_number,
    tensors_of,
)
from nalb.errors import InputError
from nalb.extensions import ESTIMATOR_GROUP, SCHEME_GROUP, estimators_with, is_own, load_scheme
from nalb.launch.network import configured_capacities, job_nodes
from nalb.measurement.estimators import ESTIMATORS, Estimator
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.nodes import Capacities, Node, server_indices
from nalb.planning.shares import bound_s
from nalb.planning.slices import Tensor, build_layout
from nalb.protocol.planner import usual_inflight_bytes
from nalb.reporting.run_file import median_s, ratio, read_events, read_run, steady
from nalb.schemes import Scheme
from nalb.simulation.exchange import WITH_HEADERS, MessageWeight
from nalb.simulation.job import SCHEMES, by_flows, by_planner, by_slices, planner_of
from nalb.simulation.recorded import simulate_events
from nalb.units import mbps_to_bytes_per_s
from netem.network_file import find_network, load_network
from netem.schedule import pair_caps_at

SLICES_UP_TO = 16  # nodes: beyond, slices take minutes, and --by auto takes flows
HIGH_NODES = 100_000
HIGH_MBPS = 1e9
ESTIMATORS_HELP = f"of capacities: {', '.join(ESTIMATORS)}{OWN_HELP}; default: the true ones"
DEFAULTS = {  # of flags that --run has no use for
    "model_bytes": None,
    "replay": None,
    "schemes": ",".join(SCHEMES),
    "estimator": "true",
    "rounds": 10,
    "inflight_bytes": None,
    "alpha_bytes": str(FIRST_ALPHA_BYTES),
    "by": "auto",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    parser.add_argument(
        "--network",
        metavar="FILE",
        help="network file, or the name of a carried one; rates at 0 s; with --run: where the run's is not a carried one",
    )
    parser.add_argument("--random", metavar="N:LOW-HIGH:SEED", help="N nodes, rates drawn evenly, Mbit/s")
    parser.add_argument("--run", metavar="DIR", help="simulate what a run directory of `nalb compare` did, and compare")
    parser.add_argument("--model-bytes", metavar="B", help="bytes of all gradients")
    parser.add_argument("--replay", choices=workloads.NAMES, help="take the model's tensors from a carried workload")
    parser.add_argument("--schemes", help="comma-separated (default: all)")
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
    parser.add_argument("--message-bytes", metavar="B", default="0", help="what every message costs beside its bytes")
    parser.add_argument("--no-headers", action="store_true", help="links carry payload alone")
    parser.add_argument(
        "--by", choices=("auto", "slices", "flows"),
        help=f"slice by slice, or whole flows (default: slices up to {SLICES_UP_TO} nodes)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    simulate_parallel.add_flags(parser)


@dataclass(frozen=True)
class Simulated:
    """One scheme's result."""

    scheme: str
    time_s: float  # median over the rounds after the warm-up
    times_s: list[float]


def main(args: argparse.Namespace) -> int:
    """Simulate and print."""
    if args.parallel is not None or any(vars(args)[name] is not None for name in simulate_parallel.FLAGS):
        return _simulate_parallel(args)
    message_bytes = parse_number("--message-bytes", args.message_bytes, HIGH_ALPHA_BYTES, low=0)
    wire = MessageWeight(1.0 if args.no_headers else WITH_HEADERS.goodput_part, message_bytes)
    if not (args.network or args.run) if args.random is None else (args.network or args.run):
        raise InputError(
            "give exactly one of --network, --random and --run; --run with --network where its is not a carried one"
        )
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
    flows = args.by == "flows" or (args.by == "auto" and len(nodes) > SLICES_UP_TO)
    if flows and (args.estimator != "true" or wire.message_bytes or given.keys() & {"alpha_bytes", "inflight_bytes"}):
        flags = "--estimator, --message-bytes, --alpha-bytes and --inflight-bytes"
        raise InputError(f"{flags} need slices: give --by slices, or leave them out")
    results = []
    for name, scheme in track(schemes.items(), "simulating", console=Console(stderr=True), transient=True):
        learns = scheme.learns_from_times or (estimator is not None and scheme.follows_estimates)
        rounds = args.rounds if learns else 1
        if flows:
            times_s = by_flows(name, nodes, tensors, capacities, rounds, wire.goodput_part, schemes=schemes)
        else:
            times_s = _by_slices(args, scheme, estimator, nodes, tensors, capacities, rounds, wire)
        results.append(Simulated(name, median_s(times_s), times_s))
    if args.json:
        rows = {
            r.scheme: {"time_s": r.time_s, "over_bound": r.time_s / bound if bound else None, "times_s": r.times_s}
            for r in results  # no bound: null, not `ratio`'s NaN, which JSON does not have
        }
        told = {"nodes": len(nodes), "model_bytes": model_bytes, "bound_s": bound, "by": "flows" if flows else "slices"}
        print(json.dumps(told | {"schemes": rows}))
    else:
        title = f"{model_bytes / 1e6:.1f} MB, {len(nodes)} nodes, by {'flows' if flows else 'slices'}; lossless bound {bound:.4g} s"
        table = Table("scheme", "time s", "x bound", title=title)
        for one in results:
            table.add_row(one.scheme, f"{one.time_s:.4g}", f"{ratio(one.time_s, bound):.3f}")
        Console().print(table)
    return 0


def _simulate_parallel(args: argparse.Namespace) -> int:
    if args.parallel is None:
        flags = ", ".join(f"--{name}" for name in simulate_parallel.FLAGS if vars(args)[name] is not None)
        raise InputError(f"{flags}: of models that are trained in parts: add --parallel, or leave it out")
    if args.run or (args.network and args.random) or any(vars(args)[name] is not None for name in DEFAULTS):
        raise InputError("--parallel takes --network or --random, or eight workers of 10 Gbit/s: leave out the others")
    capacities = _network(args)[1] if args.network or args.random else None
    return simulate_parallel.main(args, capacities)


def _by_slices(
    args: argparse.Namespace,
    scheme: Scheme,
    estimator: Callable[[int], Estimator] | None,
    nodes: list[Node],
    tensors: list[Tensor],
    capacities: Capacities,
    rounds: int,
    wire: MessageWeight,
) -> list[float]:
    alpha_bytes = parse_number("--alpha-bytes", args.alpha_bytes, HIGH_ALPHA_BYTES)
    fixed, known = scheme.fixed_slice_bytes, {scheme.name: scheme}
    layout = build_layout(
        tensors,
        num_nodes=len(nodes),
        num_servers=len(server_indices(nodes)),
        alpha_bytes=alpha_bytes,
        fixed_slice_bytes=fixed,
    )
    window: float | None = None
    if args.inflight_bytes is not None:
        window = parse_number("--inflight-bytes", args.inflight_bytes, HIGH_MODEL_BYTES, low=0)
    if estimator is not None and not scheme.routes_itself:
        fixed_window = None if window is None else int(window)
        planner = planner_of(nodes, tensors, alpha_bytes, fixed, estimator, fixed_window, known)
        results = by_planner(scheme.name, nodes, layout, capacities, rounds, planner, wire)
    else:
        usual = 0 if scheme.learns_from_times else usual_inflight_bytes(layout.model_bytes)
        window = float(usual) if window is None else window
        results = by_slices(scheme.name, nodes, layout, capacities, rounds, window, wire, schemes=known)
    return [result.time_s for result in results]


def _network(args: argparse.Namespace) -> tuple[list[Node], Capacities]:
    if args.network:
        network = load_network(find_network(args.network))
        return job_nodes(network), configured_capacities(network, 0.0)
    try:
        count, rates, seed = args.random.split(":")
        low, high = map(float, rates.split("-"))
        number, source = int(count), np.random.default_rng(int(seed))
    except ValueError:
        raise InputError(f"--random {args.random!r}: write N:LOW-HIGH:SEED, such as 12:20-220:1") from None
    if not (1 <= number <= HIGH_NODES and 0 < low <= high <= HIGH_MBPS):
        raise InputError(f"--random {args.random!r}: 1 to {HIGH_NODES} nodes, rates above 0, the lower one first")
    drawn = [mbps_to_bytes_per_s(rate) for rate in source.uniform(low, high, number)]
    return [Node(f"n{i}") for i in range(number)], Capacities.from_lists(drawn, drawn)


def _parse_schemes(text: str) -> dict[str, Scheme]:
    """The schemes named, in order; InputError for those that cannot be simulated."""
    names = parse_names("--schemes", text)
    for name in names:
        if name not in SCHEMES and not is_own(name, SCHEME_GROUP):
            raise InputError(
                f"--schemes: {name!r} cannot be simulated: choose of {', '.join(SCHEMES)}, or your own, package.module:NAME"
            )
    return {name: SCHEMES[name] if name in SCHEMES else load_scheme(name) for name in names}


def _simulate_run(args: argparse.Namespace, wire: MessageWeight) -> int:
    """Simulated against measured, scheme by scheme."""
    run_dir = Path(args.run)
    run = read_run(run_dir)
    network = load_network(find_network(args.network or run.network))
    if network.name != run.network:
        raise InputError(f"{run_dir} ran on {run.network}, not on {network.name}: give its own network file")
    if any(change.pair for change in network.changes):
        raise InputError(
            f"{run_dir}: network {run.network} changes caps of pairs, which runs do not record: simulate another"
        )
    caps = {pair: mbps_to_bytes_per_s(mbps) for pair, mbps in pair_caps_at(network, 0.0).items()}
    compared = simulate_events(read_events(run_dir), caps, wire)
    if not compared:
        raise InputError(f"{run_dir / 'samples.jsonl'}: no iteration to simulate: give a run of `nalb compare`")
    rows = {}
    errors: list[float] = []
    for scheme in run.schemes:
        ours = steady([one for one in compared if one.scheme == scheme])
        if not ours:
            continue  # p3 is not simulated
        errors += [abs(ratio(one.simulated_s, one.measured_s) - 1) for one in ours]
        rows[scheme] = {
            "measured_s": statistics.median(one.measured_s for one in ours),
            "simulated_s": statistics.median(one.simulated_s for one in ours),
        }
    middle = statistics.median(errors)
    if args.json:
        print(json.dumps({"schemes": rows, "median_error": middle, "iterations": [asdict(one) for one in compared]}))
        return 0
    table = Table("scheme", "measured s", "simulated s", "simulated / measured", title=escape(str(run_dir)))
    for scheme, row in rows.items():
        part = ratio(row["simulated_s"], row["measured_s"])
        table.add_row(scheme, f"{row['measured_s']:.3f}", f"{row['simulated_s']:.3f}", f"{part:.3f}")
    Console().print(table)
    print(f"median error of {len(errors)} iterations: {middle:.1%}")
    return 0
