"""`nalb compare --network NET (--replay MODEL | --train NAME) --schemes A,B --iterations K --out DIR`

With `--batching A,B` the ways to size batches are compared instead, under one scheme, by real training.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from nalb.batching.schemes import BASELINES
from nalb.batching.speed import require_library
from nalb.cli.launch import (
    NAMESPACE_PORT,
    add_batch_flags,
    add_job_flags,
    check_batch_flags,
    ending_on_signals,
    job_options,
    make_run_dir,
    observer_address,
)
from nalb.cli.plan import parse_names
from nalb.cli.progress import Lines, progress_of, say, show_table
from nalb.compare.batch_comparison import run_batching
from nalb.compare.comparison import COMPARED, SAMPLES_PER_BATCH, Lane, Series, compare
from nalb.compare.ring import RING, Ring, require_torch, ring_specs
from nalb.compare.variants import parse_variant
from nalb.errors import InputError
from nalb.launch.network import (
    Changes,
    configured_bound_s,
    configured_message,
    goodput_bound_s,
    inside,
    job_network,
    job_nodes,
    places_in,
)
from nalb.launch.roles import process_specs
from nalb.launch.supervisor import Job, print_line
from nalb.reporting.batching_file import BatchingFile, batching_table, write_batchings
from nalb.reporting.record import read_record
from nalb.reporting.run_file import RunFile, write_run
from nalb.reporting.table import comparison_table
from nalb.settings import BATCHINGS, JOINT, SCHEMES
from nalb.transport.observer import Observer
from nalb.workloads import NAMES, bytes_of
from netem.build import NODE_INTERFACE
from netem.emulation import Emulation
from netem.network_file import Network, find_network, load_network
from netem.rootless import ensure_privilege

DEFAULT_SCHEMES = "stock,average,auto"
TEST_IMAGES = 2000  # of the accuracy that a comparison of batchings prints: a slow machine may be the one to test
P3_PORT = NAMESPACE_PORT + 10  # of the second job, in the same namespaces
RING_PORT = NAMESPACE_PORT + 20  # where the ring's workers find each other


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    parser.add_argument("--network", required=True, metavar="FILE", help="network file, or the name of a carried one")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--replay", choices=NAMES, help="the model's real tensors without its compute")
    what.add_argument("--train", choices=("cnn", "mobilenet"), help="real training on Fashion-MNIST")
    parser.add_argument(
        "--schemes",
        help=f"comma-separated (default: {DEFAULT_SCHEMES}), of: "
        + ", ".join(COMPARED)
        + "; see docs/run-files.md for options behind a name",
    )
    parser.add_argument(
        "--batching",
        metavar="A,B",
        help="compare batch sizing instead, NAME or NAME@SCHEME, of: " + ", ".join([*BATCHINGS, JOINT]),
    )
    add_batch_flags(parser)
    parser.add_argument(
        "--test-every", type=int, metavar="N", help="with --batching: accuracy after every N iterations"
    )
    parser.add_argument("--iterations", type=int, default=10, metavar="K", help="per scheme (default: 10)")
    parser.add_argument(
        "--compute-ms", type=float, default=0.0, metavar="C", help="a replay's compute time (default: 0)"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="run directory")
    add_job_flags(parser)


def parse_schemes(text: str) -> list[str]:
    """The schemes named, in order; InputError for unknown or repeated ones."""
    schemes = parse_names("--schemes", text)
    for scheme in schemes:
        parse_variant(scheme, COMPARED)
    return schemes


def parse_batchings(args: argparse.Namespace, schemes: list[str]) -> list[str]:
    """The batchings named, NAME[@SCHEME], in order, none without the flag; InputError for what cannot be compared."""
    if args.batching is None:
        return []
    names = parse_names("--batching", args.batching)
    for word in names:
        name, at, scheme = word.partition("@")
        if name not in BATCHINGS and word != JOINT:
            raise InputError(f"--batching: unknown {word!r}: choose of {', '.join([*BATCHINGS, JOINT])}")
        if at and (scheme not in SCHEMES or scheme == JOINT or name in BASELINES):
            raise InputError(
                f"--batching {word!r}: no such scheme for it: choose of {', '.join(SCHEMES)} without {JOINT}"
            )
    if not args.train or len(schemes) != 1:
        raise InputError("--batching compares real training under one scheme: give --train and one name to --schemes")
    return names


def main(args: argparse.Namespace) -> int:
    """Compare and write the run directory."""
    check_batch_flags(args)
    schemes = parse_schemes(args.schemes or ("auto" if args.batching else DEFAULT_SCHEMES))
    batchings = parse_batchings(args, schemes)
    if not 1 <= args.iterations <= 100_000:
        raise InputError(f"--iterations {args.iterations}: choose 1 to 100000")
    if args.test_every is not None and not (args.batching and args.test_every >= 1):
        raise InputError(f"--test-every {args.test_every}: give 1 or more, with --batching")
    if not 0 <= args.compute_ms <= 600_000:
        raise InputError(f"--compute-ms {args.compute_ms}: choose 0 to 600000")
    if args.train and args.compute_ms:
        raise InputError(f"--compute-ms {args.compute_ms:g} is of replays alone: use --replay, or leave it out")
    if args.train and (other := [word for word in schemes if word == RING or parse_variant(word).scheme != word]):
        raise InputError(f"--train: {other[0]!r} runs replays only: use --replay")
    if args.replay and any(parse_variant(word, COMPARED).scheme == JOINT for word in schemes):
        raise InputError("--schemes joint sizes batches, which a replay does not compute: use --train")
    if RING in schemes:
        require_torch()
    require_library(args.predictor)
    network = load_network(find_network(args.network))
    ensure_privilege()
    run_dir = make_run_dir(args.out)
    if batchings:
        return _compare_batchings(args, network, batchings, schemes[0], run_dir)
    with ending_on_signals():
        if args.replay:
            workload, model_bytes = f"replay {args.replay}", bytes_of(args.replay)
            bound = configured_bound_s(network, model_bytes)
            series = _replay(args, network, schemes, run_dir, bound)
        else:
            workload = f"train {args.train}"
            series, model_bytes = _train(args, network, schemes, run_dir)
            bound = configured_bound_s(network, model_bytes)
    num_workers = sum(node.is_worker for node in network.nodes)
    run = RunFile(
        network.name,
        workload,
        len(network.nodes),
        model_bytes,
        bound,
        {name: one.result(num_workers, SAMPLES_PER_BATCH) for name, one in series.items()},
        goodput_bound_s(network, model_bytes),
    )
    write_run(run_dir, run)
    show_table(comparison_table(read_record(run_dir)))
    print_line(f"run directory: {run_dir}")
    return 0


def _replay(
    args: argparse.Namespace, network: Network, schemes: list[str], run_dir: Path, bound: float
) -> dict[str, Series]:
    with ExitStack() as stack:
        emulation = stack.enter_context(job_network(network))
        main_lane = p3_lane = None
        lanes: dict[str, Lane] = {}
        for scheme in schemes:
            if scheme == "p3":
                p3_lane = p3_lane or _start_lane(args, emulation, run_dir, stack, P3_PORT, "p3")
                lanes[scheme] = p3_lane
            elif scheme == RING:
                lanes[scheme] = _start_ring(args, emulation, run_dir, stack)
            else:
                main_lane = main_lane or _start_lane(args, emulation, run_dir, stack, NAMESPACE_PORT, "aware")
                lanes[scheme] = main_lane
        with progress_of(schemes, args.iterations, network.is_static, bound) as progress:
            return compare(lanes, emulation, network, args.iterations, progress, run_dir, bound)


def _start_lane(
    args: argparse.Namespace,
    emulation: Emulation,
    run_dir: Path,
    stack: ExitStack,
    port: int,
    scheme: str,
) -> Lane:
    """A held job; several share the network and take turns."""
    address = observer_address(stack, run_dir, f"observers-{scheme}")
    options = replace(job_options(args, port, address, run_dir, hold=True), scheme=scheme)
    command = [sys.executable, "-m", "kvstore_patch.roles.replay", args.replay, "--compute-ms", str(args.compute_ms)]
    specs = process_specs(places_in(emulation), command, options, os.environ)
    say(f"starting {len(specs)} processes on {len(emulation.network.nodes)} nodes")
    logs = run_dir / "logs" / ("p3" if scheme == "p3" else "")
    job = stack.enter_context(Job(specs, inside(emulation), os.environ, logs))
    return Lane(job, stack.enter_context(Observer(options.observers or "")))


def _start_ring(args: argparse.Namespace, emulation: Emulation, run_dir: Path, stack: ExitStack) -> Lane:
    """The peer's processes, held as a job's are."""
    address = observer_address(stack, run_dir, RING)
    places = [place for place in places_in(emulation) if place.is_worker]
    ring = Ring(address, job_nodes(emulation.network), bytes_of(args.replay), run_dir / "samples.jsonl")
    ring = stack.enter_context(ring)
    specs = ring_specs(places, args.replay, args.compute_ms, address, RING_PORT, NODE_INTERFACE)
    say(f"starting {len(specs)} processes of a ring on {len(places)} nodes")
    job = stack.enter_context(Job(specs, inside(emulation), os.environ, run_dir / "logs" / RING))
    return Lane(job, ring)


def _train(
    args: argparse.Namespace, network: Network, schemes: list[str], run_dir: Path
) -> tuple[dict[str, Series], int]:
    """Real training: a job of its own for each scheme, from the same seed, one after another."""
    command = _training_command(args)
    series: dict[str, Series] = {}
    model_bytes = 0
    for scheme in schemes:
        one = Series()
        with ExitStack() as stack:
            address = observer_address(stack, run_dir)
            options = replace(job_options(args, NAMESPACE_PORT, address, run_dir), scheme=scheme)
            emulation = stack.enter_context(job_network(network))
            specs = process_specs(places_in(emulation), command, options, os.environ)
            say(f"training {args.train} under {scheme}: {len(specs)} processes on {len(network.nodes)} nodes")
            progress = stack.enter_context(Lines([scheme], args.iterations, takes_turns=False, bound_s=None))
            job = stack.enter_context(Job(specs, inside(emulation), os.environ, run_dir / "logs" / scheme, print_line))
            observer = stack.enter_context(Observer(options.observers or ""))
            observer.send(configured_message(network, 0.0))
            changes = Changes(network, run_dir)
            while not job.finished():
                for event in observer.events(0.1):
                    if event.kind == "layout" and not changes.started:
                        one.begin(event.at_s)
                        model_bytes = event.data["model_bytes"]
                        stack.enter_context(changes.start(emulation))
                    if event.kind == "iteration":
                        one.add(event.data)
                        progress.iteration(scheme, event.data)
                changes.tell(observer.send)
        series[scheme] = one
    return series, model_bytes


def _training_command(args: argparse.Namespace) -> list[str]:
    """What each worker runs, over as many epochs as the iterations take."""
    script = Path(__file__).resolve().parents[2] / "examples" / "train_fashion_mnist.py"
    if not script.exists():
        raise InputError(
            f"--train needs the source tree: {script} is missing; use --replay, or `pip install -e .` in a clone"
        )
    steps = args.iterations + 1  # the first records what is pushed
    return [sys.executable, str(script), "--model", args.train, "--steps", str(steps)]


def _compare_batchings(
    args: argparse.Namespace, network: Network, batchings: list[str], scheme: str, run_dir: Path
) -> int:
    command = [*_training_command(args), "--test-images", str(TEST_IMAGES)]
    command += ["--max-batches", str(args.test_every)] if args.test_every else []
    results = {}
    with ending_on_signals():
        for name in batchings:

            def show(event: dict[str, Any], name: str = name) -> None:
                times = " ".join(f"{one:.3f}" for one in event["compute_s"])
                say(f"{name}, iteration {event['iteration'] + 1}: compute s {times}")

            say(f"training {args.train} with batching {name}")
            options = replace(job_options(args, NAMESPACE_PORT, None, None), scheme=scheme)
            results[name] = run_batching(name, network, command, options, run_dir / name, show)
    total = sum(results[batchings[0]].sizes[0])
    run = BatchingFile(network.name, f"train {args.train}", scheme, total, results)
    write_batchings(run_dir, run)
    show_table(batching_table(run), least_width=120)
    print_line(f"run directory: {run_dir}")
    return 0
