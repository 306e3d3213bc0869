"""`nalb compare --network NET (--replay MODEL | --train NAME) --schemes A,B --iterations K --out DIR`

With `--batching A,B` the command compares ways to size batches instead, under one scheme and by real training. With
`--parallel A,B` it compares ways to divide a model's work by tokens.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from nalb.batching.schemes import BASELINES
from nalb.batching.speed import require_library
from nalb.cli.flags import (
    add_batch_flags,
    add_framework_flag,
    add_job_flags,
    add_metrics_flag,
    add_token_flags,
    around_of,
    check_batch_flags,
    check_metrics_flag,
    check_token_flags,
    job_options,
    parse_names,
)
from nalb.compare.comparison import COMPARED, PEERS
from nalb.compare.progress import show_table
from nalb.compare.ring import RING
from nalb.compare.run import CompareRequest, compare_batchings, compare_parallels, compare_schemes, require
from nalb.compare.variants import Variant, parse_variants
from nalb.errors import InputError
from nalb.extensions import estimators_with
from nalb.launch.frameworks import MXNET, TORCH
from nalb.launch.run_dir import make_run_dir
from nalb.launch.supervisor import print_line
from nalb.options import BATCHINGS, DEFAULT_PRECISION, JOINT_BATCHING
from nalb.reporting.batching_file import batching_table
from nalb.reporting.parallel_file import parallel_table
from nalb.reporting.record import read_record
from nalb.reporting.table import comparison_table
from nalb.schemes import AUTO, SCHEMES, Scheme
from nalb.tokens.policies import PARALLELS
from nalb.workloads import NAMES
from netem.network_file import find_network, load_network
from netem.rootless import ensure_privilege

DEFAULT_SCHEMES = {MXNET: "stock,average,auto", TORCH: "gloo,average,auto"}
VGG = "vgg"  # the only model that --parallel trains
TOTAL = 512  # the default number of samples in an iteration of --parallel


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--network", required=True, metavar="FILE", help="network file, or the name of a carried one")
    add_framework_flag(parser)
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
        help="compare batch sizing instead, NAME or NAME@SCHEME, of: " + ", ".join([*BATCHINGS, JOINT_BATCHING]),
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
    parser.add_argument("--iterations", type=int, default=10, metavar="K", help="per scheme (default: 10)")
    parser.add_argument(
        "--compute-ms", type=float, default=0.0, metavar="C", help="a replay's compute time (default: 0)"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="run directory")
    add_metrics_flag(parser)
    add_job_flags(parser)
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
        if name not in BATCHINGS and word != JOINT_BATCHING:
            raise InputError(f"--batching: unknown {word!r}: choose of {', '.join([*BATCHINGS, JOINT_BATCHING])}")
        if at and (scheme not in SCHEMES or SCHEMES[scheme].sizes_batches or name in BASELINES):
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
            raise InputError(f"--parallel: unknown {word!r}: choose of {', '.join(PARALLELS)}, or one of them @SCHEME")
        ways.append((name, SCHEMES[scheme or schemes[0].name]))
    check_token_flags(args, ways)
    if words and (args.train != VGG or len(schemes) != 1):
        raise InputError(f"--parallel compares real training under one scheme: give --train {VGG} and one to --schemes")
    return words


def main(args: argparse.Namespace) -> int:
    """Run the comparison, write its run directory and print its table. Raises NalbError."""
    check_batch_flags(args, [word for word in (args.batching or args.parallels or "").split(",") if word])
    framework = args.framework or MXNET
    schemes = parse_schemes(args.schemes or (AUTO if args.batching or args.parallels else DEFAULT_SCHEMES[framework]))
    batchings = parse_batchings(args, schemes)
    ways = parse_parallels(args, schemes)
    _check(args, schemes)
    command = _command(args)
    if framework == TORCH:
        _check_torch(args, schemes)
    else:
        _check_mxnet(schemes)
    network = load_network(find_network(args.network))
    options = replace(job_options(args), batching=None, scheme=schemes[0].name if batchings or ways else AUTO)
    request = CompareRequest(
        network, options, args.replay, args.train, args.iterations, Path(args.out), args.compute_ms, framework, command,
        args.test_every, args.micro,
    )  # fmt: skip
    require(request, schemes)
    ensure_privilege()
    run_dir = make_run_dir(args.out)
    request = replace(request, run_dir=run_dir)
    with around_of(args, args.iterations * len(batchings or ways or schemes))(run_dir):
        if batchings:
            show_table(batching_table(compare_batchings(request, batchings)), least_width=120)
        elif ways:
            request = replace(request, options=replace(options, batch_total=None))
            show_table(parallel_table(compare_parallels(request, ways, args.batch_total or TOTAL)), least_width=120)
        else:
            compare_schemes(request, schemes)
            show_table(comparison_table(read_record(run_dir)))
    print_line(f"run directory: {run_dir}")
    return 0


def _command(args: argparse.Namespace) -> tuple[str, ...]:
    """The user's own training; empty where there is none. Raises InputError unless exactly one workload is given."""
    words = tuple(args.command)
    if words and (words[0] != "--" or len(words) == 1):
        raise InputError("put -- before the command: nalb compare --network wan4-static --out DIR -- python train.py")
    if sum(map(bool, (args.replay, args.train, words))) != 1:
        raise InputError("give one workload: --replay MODEL, --train MODEL, or -- and a command")
    if words and (args.batching or args.parallels):
        raise InputError("--batching and --parallel compare trainings of --train alone: leave the command out")
    return words[1:]


def _check_torch(args: argparse.Namespace, schemes: list[Variant]) -> None:
    """Raise InputError for what jobs of PyTorch do not have."""
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


def _check(args: argparse.Namespace, schemes: list[Variant]) -> None:
    """Raise InputError for flags out of range or that do not fit each other, MachineError for a missing library."""
    if not 1 <= args.iterations <= 100_000:
        raise InputError(f"--iterations {args.iterations}: choose 1 to 100000")
    if args.test_every is not None and not (args.batching and args.test_every >= 1):
        raise InputError(f"--test-every {args.test_every}: give 1 or more, with --batching")
    if args.micro is not None and not (args.batching and args.micro >= 1):
        raise InputError(f"--micro {args.micro}: give 1 or more, with --batching")
    if not 0 <= args.compute_ms <= 600_000:
        raise InputError(f"--compute-ms {args.compute_ms}: choose 0 to 600000")
    if not args.replay and args.compute_ms:
        raise InputError(f"--compute-ms {args.compute_ms:g} is of replays alone: use --replay, or leave it out")
    is_gloo_of_torch = args.framework == TORCH and not args.replay
    trained = [one for one in schemes if not (is_gloo_of_torch and one.name == RING)]
    if not args.replay and (other := [one.word for one in trained if not one.is_of_training]):
        raise InputError(f"--schemes: {other[0]!r} runs replays only: use --replay")
    if args.replay and (sizing := [one.name for one in schemes if one.scheme and one.scheme.sizes_batches]):
        raise InputError(f"--schemes {sizing[0]} sizes batches, which a replay does not compute: use --train")
    check_metrics_flag(args)
    require_library(args.predictor)
    estimators_with(args.estimator)  # a fault in a user's own estimator is reported before anything starts
