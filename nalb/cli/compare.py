"""`nalb compare --network NET (--replay MODEL | --train NAME | -- COMMAND...) --schemes A,B`

A COMMAND is a training of the user's own; each scheme runs it `--rounds` times, in a network, on loopback or on hosts. With
`--batching A,B` the command compares ways to size batches instead, under one scheme and by real training. With `--parallel A,B` it
compares ways to divide a model's work by tokens.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from nalb.batching.schemes import BASELINES, FEDERATED
from nalb.batching.speed import require_library
from nalb.cli.flags import (
    add_batch_flags,
    add_encryption_flags,
    add_framework_flag,
    add_job_flags,
    add_metrics_flag,
    add_place_flags,
    add_token_flags,
    around_of,
    check_batch_flags,
    check_batch_total,
    check_metrics_flag,
    check_token_flags,
    command_of,
    encryption_of,
    framework_of,
    job_options,
    nodes_of,
    parse_names,
    without_encryption,
)
from nalb.compare.comparison import COMPARED, PEERS
from nalb.compare.progress import show_table
from nalb.compare.ring import RING
from nalb.compare.run import CompareRequest, compare_batchings, compare_parallels, compare_schemes, require
from nalb.compare.variants import Variant, parse_variants
from nalb.errors import InputError, did_you_mean
from nalb.extensions import estimators_with
from nalb.launch.encryption import Encryption
from nalb.launch.frameworks import MXNET, TORCH
from nalb.launch.hosts import load_hosts
from nalb.launch.run_dir import make_run_dir
from nalb.launch.start import check_workers
from nalb.launch.supervisor import print_line
from nalb.launch.venue import Where
from nalb.options import BATCHINGS, DEFAULT_PRECISION, JOINT_BATCHING
from nalb.reporting.batching_file import batching_table
from nalb.reporting.pace import paces
from nalb.reporting.parallel_file import parallel_table
from nalb.reporting.record import Record, read_record
from nalb.reporting.summary import headline, is_training, summarise
from nalb.reporting.table import comparison_table, printed_lines, training_table
from nalb.schemes import AUTO, SCHEMES, Scheme
from nalb.tokens.policies import PARALLELS
from nalb.workloads import NAMES
from netem.network_file import find_network, load_network
from netem.rootless import ensure_privilege

DEFAULT_SCHEMES = {MXNET: "stock,average,auto", TORCH: "gloo,average,auto"}
VGG = "vgg"  # the only model that --parallel trains
ITERATIONS = 10  # of each scheme
ROUNDS_MOST = 1000
TRAINED = tuple(name for name in (*BATCHINGS, JOINT_BATCHING) if name != FEDERATED)  # by --train's scripts
TOTAL = 512  # the default number of samples in an iteration of --parallel


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_place_flags(parser)
    add_framework_flag(parser, "; replays and --train: mxnet")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--replay", choices=NAMES, help="the model's real tensors without its compute")
    what.add_argument("--train", choices=("cnn", "mobilenet", VGG), help="real training on Fashion-MNIST")
    parser.add_argument(
        "--schemes",
        help=f"comma-separated (default: {DEFAULT_SCHEMES[MXNET]}; for PyTorch {DEFAULT_SCHEMES[TORCH]}), of: "
        + ", ".join(COMPARED)
        + "; see docs/run-files.md for options behind a name",
    )
    parser.add_argument(
        "--batching",
        metavar="A,B",
        help="compare batch sizing instead, NAME or NAME@SCHEME, of: " + ", ".join(TRAINED),
    )
    add_batch_flags(parser)
    parser.add_argument(
        "--parallel",
        dest="parallels",
        metavar="A,B",
        help="compare ways to share a model out by tokens instead, NAME or NAME@SCHEME, of: " + ", ".join(PARALLELS),
    )
    add_token_flags(parser)
    parser.add_argument(
        "--test-every", type=int, metavar="N", help="with --batching: accuracy after every N iterations"
    )
    parser.add_argument(
        "--micro", type=int, metavar="N", help="with --batching: compute N samples at a time, and add gradients up"
    )
    parser.add_argument(
        "--iterations",
        type=int,
        metavar="K",
        help=f"per scheme (default: {ITERATIONS}); your own training decides itself",
    )
    parser.add_argument(
        "--rounds", type=int, metavar="R", help="how often each scheme runs your own training, in turn (default: 1)"
    )
    parser.add_argument(
        "--compute-ms", type=float, default=0.0, metavar="C", help="a replay's compute time (default: 0)"
    )
    parser.add_argument("--out", metavar="DIR", help="run directory (default: a new one in runs/)")
    add_metrics_flag(parser)
    add_job_flags(parser)
    add_encryption_flags(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="after --: a training of your own, once per scheme"
    )


def parse_schemes(text: str) -> list[Variant]:
    """The schemes that --schemes names, in order. Raises InputError for unknown or repeated ones."""
    return parse_variants(parse_names("--schemes", text), PEERS)


def parse_batchings(args: argparse.Namespace, schemes: list[Variant]) -> list[str]:
    """The batchings that --batching names, NAME[@SCHEME], in order; empty without the flag.

    Raises InputError for unknown batchings and for flags that do not fit a comparison of batchings.
    """
    if args.batching is None:
        return []
    names = parse_names("--batching", args.batching)
    for word in names:
        name, at, scheme = word.partition("@")
        if name == FEDERATED:
            raise InputError(f"--batching {name} is of scripts that average models: give them to `nalb launch`")
        if name not in TRAINED:
            raise InputError(
                f"--batching: unknown {word!r}: {did_you_mean(name, TRAINED)}choose of {', '.join(TRAINED)}"
            )
        if at and name in (*BASELINES, JOINT_BATCHING):
            raise InputError(f"--batching {word!r}: {name} has no scheme: leave out @{scheme}")
        if at and (scheme not in SCHEMES or SCHEMES[scheme].sizes_batches):
            raise InputError(
                f"--batching {word!r}: no such scheme for it: choose of {', '.join(SCHEMES)} without {JOINT_BATCHING}"
            )
    if not args.train or len(schemes) != 1:
        raise InputError("--batching compares real training under one scheme: give --train and one name to --schemes")
    return names


def parse_parallels(args: argparse.Namespace, schemes: list[Variant]) -> list[str]:
    """The ways that --parallel names, NAME[@SCHEME], in order; empty without the flag.

    Raises InputError for unknown ways and for flags that do not fit a comparison of ways.
    """
    ways: list[tuple[str, Scheme]] = []
    words = parse_names("--parallel", args.parallels) if args.parallels is not None else []
    for word in words:
        name, at, scheme = word.partition("@")
        if name not in PARALLELS or (at and scheme not in SCHEMES):
            meant = "" if name in PARALLELS else did_you_mean(name, PARALLELS)
            raise InputError(
                f"--parallel: unknown {word!r}: {meant}choose of {', '.join(PARALLELS)}, or one of them @SCHEME"
            )
        ways.append((name, SCHEMES[scheme or schemes[0].name]))
    check_token_flags(args, ways)
    if words and args.batch_most:
        raise InputError("--batch-most is of batch sizes: leave it out, or give --batching in place of --parallel")
    if words and (args.train != VGG or len(schemes) != 1):
        raise InputError(f"--parallel compares real training under one scheme: give --train {VGG} and one to --schemes")
    return words


def main(args: argparse.Namespace) -> int:
    """Run the comparison, write its run directory and print its table. Raises NalbError."""
    command = _command(args)
    others = [word for word in (args.batching or args.parallels or "").split(",") if word]
    samples = args.batch_total if command else None
    if not command:
        check_batch_flags(args, others)
    # a mistake in a name is told before a Python is asked
    named = [] if args.schemes is None else parse_schemes(args.schemes)
    needs_torch = any(one.name == RING or one.precision != DEFAULT_PRECISION for one in named)
    framework = framework_of(args, command, needs_torch) if command else args.framework or MXNET
    schemes = named or parse_schemes(AUTO if others else DEFAULT_SCHEMES[framework])
    batchings = parse_batchings(args, schemes)
    ways = parse_parallels(args, schemes)
    _check(args, schemes, framework)
    encryption = encryption_of(args, leaves_here=args.hosts is not None)
    if framework == TORCH:
        _check_torch(args, schemes, encryption)
    else:
        _check_mxnet(schemes)
    if args.network is not None:
        ensure_privilege()
    network = None if args.network is None else load_network(find_network(args.network))
    where = Where(nodes_of(args.local), network, None if args.hosts is None else load_hosts(args.hosts))
    options = replace(
        job_options(args, encryption), batching=None, scheme=schemes[0].name if batchings or ways else AUTO
    )
    if command:
        options = replace(options, batch_total=None)  # it only says what the script does
    iterations = None if command else args.iterations or ITERATIONS
    request = CompareRequest(
        where, options, args.replay, args.train, iterations, Path(), args.compute_ms, framework, command,
        args.test_every, args.micro, args.rounds or 1, samples, encryption,
    )  # fmt: skip
    check_workers(options, request.num_workers)
    require(request, schemes)
    run_dir = make_run_dir(args.out)
    request = replace(request, run_dir=run_dir)
    whole = None if iterations is None else iterations * len(batchings or ways or schemes)
    with around_of(args, whole)(run_dir):
        if batchings:
            show_table(batching_table(compare_batchings(request, batchings)), least_width=120)
        elif ways:
            request = replace(request, options=replace(options, batch_total=None))
            show_table(parallel_table(compare_parallels(request, ways, args.batch_total or TOTAL)), least_width=120)
        else:
            compare_schemes(request, schemes)
            _show(read_record(run_dir))
    print_line(f"run directory: {run_dir}")
    return 0


def _show(record: Record) -> None:
    """Print the table of a comparison of schemes, and its result in words."""
    is_trained = is_training(record)
    show_table(training_table(record) if is_trained else comparison_table(record), least_width=100)
    for line in printed_lines(record.run):
        print_line(line)
    print_line(headline(record, summarise(record), paces(record)))


def _command(args: argparse.Namespace) -> tuple[str, ...]:
    """The user's own training; empty where there is none. Raises InputError unless exactly one workload is given."""
    example = "nalb compare --network wan4-static -- python train.py"
    if sum(map(bool, (args.replay, args.train, args.command))) != 1 and args.command[:1] in ([], ["--"]):
        raise InputError("give one workload: --replay MODEL, --train MODEL, or -- and a command")
    command = command_of(args, example) if args.command else ()
    if command and (args.batching or args.parallels or args.predictor or args.predictor_models or args.batch_most):
        raise InputError(
            "--batching, --parallel and their flags compare trainings of --train alone: leave them or the command out"
        )
    if command and args.iterations is not None:
        raise InputError(f"--iterations {args.iterations}: your training decides how many: leave it out")
    if command:
        check_batch_total(args.batch_total)
    if not command and args.rounds is not None:
        raise InputError(f"--rounds {args.rounds}: only your own training has rounds: leave it out, or give a command")
    if args.rounds is not None and not 1 <= args.rounds <= ROUNDS_MOST:
        raise InputError(f"--rounds {args.rounds}: choose 1 to {ROUNDS_MOST}")
    if not command and args.network is None:
        flag = "--local" if args.hosts is None else "--hosts"
        raise InputError(f"{flag} is for trainings of your own: give -- and a command, or --network")
    if not command and (args.encrypt or args.keys or args.plain):
        raise InputError("--encrypt, --keys and --plain are for trainings of your own: leave them out")
    return command


def _check_torch(args: argparse.Namespace, schemes: list[Variant], encryption: Encryption) -> None:
    """Raise InputError for what jobs of PyTorch do not have."""
    if encryption.is_on and any(one.scheme is None for one in schemes):
        remedy = without_encryption(args, leaves_here=args.hosts is not None)
        raise InputError(f"--schemes {RING} does not encrypt: {remedy}, or compare without {RING}")
    if args.transport:
        raise InputError("--transport is of MXNet alone: leave it out")
    if args.batching or args.parallels or args.train in ("mobilenet", VGG):
        raise InputError("--batching, --parallel and --train, but for --train cnn, are of MXNet alone: leave them out")
    for one in schemes:
        if one.scheme and (one.scheme.routes_itself or one.scheme.sizes_batches):
            raise InputError(f"--schemes {one.word} is of MXNet alone: PyTorch alone is {RING}")


def _check_mxnet(schemes: list[Variant]) -> None:
    """Raise InputError for what jobs of MXNet do not have."""
    for one in schemes:
        if one.precision != DEFAULT_PRECISION:
            raise InputError(f"--schemes {one.word}: fewer bytes need the plane for PyTorch: add --framework {TORCH}")


def _check(args: argparse.Namespace, schemes: list[Variant], framework: str) -> None:
    """Raise InputError for flags out of range or that do not fit each other, MachineError for a missing library."""
    if args.iterations is not None and not 1 <= args.iterations <= 100_000:
        raise InputError(f"--iterations {args.iterations}: choose 1 to 100000")
    if args.test_every is not None and not (args.batching and args.test_every >= 1):
        raise InputError(f"--test-every {args.test_every}: give 1 or more, with --batching")
    if args.micro is not None and not (args.batching and args.micro >= 1):
        raise InputError(f"--micro {args.micro}: give 1 or more, with --batching")
    if not 0 <= args.compute_ms <= 600_000:
        raise InputError(f"--compute-ms {args.compute_ms}: choose 0 to 600000")
    if not args.replay and args.compute_ms:
        raise InputError(f"--compute-ms {args.compute_ms:g} is of replays alone: use --replay, or leave it out")
    is_gloo_of_torch = framework == TORCH and not args.replay
    trained = [one for one in schemes if not (is_gloo_of_torch and one.name == RING)]
    if args.network is None and (blind := [one.word for one in schemes if one.scheme and one.scheme.needs_configured]):
        raise InputError(f"--schemes {blind[0]} needs the rates of a network file: add --network, or leave it out")
    if not args.replay and (other := [one.word for one in trained if not one.is_of_training]):
        raise InputError(f"--schemes: {other[0]!r} runs replays only: use --replay")
    if args.replay and (sizing := [one.name for one in schemes if one.scheme and one.scheme.sizes_batches]):
        raise InputError(f"--schemes {sizing[0]} sizes batches, which a replay does not compute: use --train")
    check_metrics_flag(args)
    if args.metrics is not None and (args.batching or args.parallels):
        flag = "--batching" if args.batching else "--parallel"
        raise InputError(
            f"--metrics {args.metrics}: with {flag} each training has a record of its own: leave it out, and follow one by"
            f" `nalb metrics RUN/NAME --port {args.metrics}`"
        )
    require_library(args.predictor)
    estimators_with(args.estimator)  # a fault in a user's own estimator is reported before anything starts
