"""`nalb launch [--local N | --network FILE | --hosts FILE | --root HOST] [--scheme S] [--print-env] -- COMMAND...`

The exit code is 0 when every process ended well. Otherwise it is the code of the first process that failed, or 128 + n where
signal n killed that process or the launcher. After restarts the last attempt gives the code. Code 2 means an error in what the
user gave, 3 that the machine lacks something, and 4 that a process fell silent.
"""

import argparse
import os
from pathlib import Path

from nalb.batching.schemes import BASELINES, FEDERATED, PREDICTORS
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
    check_metrics_flag,
    check_token_flags,
    command_of,
    encryption_of,
    folder,
    framework_of,
    job_options,
    nodes_of,
    schemes_help,
    without_encryption,
)
from nalb.errors import InputError, did_you_mean
from nalb.extensions import SCHEME_GROUP, estimators_with, is_own, schemes_with
from nalb.launch.encryption import Encryption
from nalb.launch.frameworks import MXNET, TORCH, chosen_here
from nalb.launch.one_node import OneNode, number_of
from nalb.launch.start import LaunchRequest, environment_lines, launch
from nalb.launch.supervisor import print_line
from nalb.options import BATCHINGS, DEFAULT_PRECISION, JOINT_BATCHING
from nalb.planning.precisions import ASKED
from nalb.schemes import AUTO, GLOO, SCHEMES, STOCK, Scheme, by_name
from nalb.tokens.policies import PARALLELS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    where = add_place_flags(parser)
    where.add_argument(
        "--root",
        metavar="HOST[:P]",
        help="this machine as one of --nodes; node 0 is HOST. Another launcher starts the rest",
    )
    parser.add_argument(
        "--nodes",
        metavar="N",
        help="with --root: how many nodes, or the environment variable that tells, as SLURM_NTASKS",
    )
    parser.add_argument(
        "--rank", metavar="R", help="with --root: which node this is, from 0; likewise, as SLURM_PROCID"
    )
    add_framework_flag(parser)
    add_job_flags(parser)
    add_encryption_flags(parser)
    parser.add_argument("--scheme", metavar="S", default=AUTO, help=schemes_help())
    parser.add_argument(
        "--one-level", action="store_true", help="sum over all machines at once, although they name their sites"
    )
    parser.add_argument(
        "--batching",
        type=_batching,
        choices=BATCHINGS,
        help="who sizes the batches (default: the script); docs/batching.md",
    )
    add_batch_flags(parser)
    parser.add_argument(
        "--parallel", choices=PARALLELS, help="who computes which part of the model, with fela.Trainer; docs/fela.md"
    )
    add_token_flags(parser)
    parser.add_argument(
        "--verify-sums", action="store_true", help="check the sum of every slice against an independent one; costs time"
    )
    parser.add_argument(
        "--precision",
        choices=ASKED,
        help="of gradients on their way, for PyTorch (default: float32); docs/precision.md",
    )
    parser.add_argument("--out", metavar="DIR", help="run directory for logs and samples (default: a new one in runs/)")
    add_metrics_flag(parser)
    parser.add_argument("--max-restarts", type=int, default=0, metavar="R", help="start again after a failure, R times")
    parser.add_argument("--min-nodes", type=int, metavar="K", help="restart without lost nodes while K are left")
    parser.add_argument(
        "--checkpoints",
        metavar="DIR",
        help="for scripts that save (default: in the run directory; none with --hosts and --root)",
    )
    parser.add_argument(
        "--print-env", action="store_true", help="print each process's environment and command, start nothing"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="after --: what each worker runs")


def _batching(word: str) -> str:
    """A type for argparse that raises InputError for the batching that a scheme brings with it."""
    if word == JOINT_BATCHING:
        raise InputError(f"--batching {word} is a scheme's own: give --scheme {word}, and leave out --batching")
    return word


def main(args: argparse.Namespace) -> int:
    """Run the job to its end, or print its environments. A failed job raises JobError, which has the job's exit code."""
    request = _parse(args)
    if args.print_env:
        print("\n".join(environment_lines(request)))
        return 0
    run_dir = launch(request, around_of(args))
    logs = run_dir / "logs"
    where = f"logs in {logs}" if logs.exists() else f"{run_dir} is gone, and the logs with it"
    print_line(f"nalb launch: all processes ended well; {where}")
    return 0


def _parse(args: argparse.Namespace) -> LaunchRequest:
    """The request that the flags make. Raises InputError for flags that are wrong or do not fit each other."""
    command = command_of(args, "nalb launch --local 4 -- python train.py --epochs 3")
    known = (*SCHEMES, GLOO.name)
    if args.scheme not in known and not is_own(args.scheme, SCHEME_GROUP):
        raise InputError(
            f"--scheme {args.scheme!r} is unknown: {did_you_mean(args.scheme, known)}choose one of {', '.join(known)}, "
            "or package.module:NAME"
        )
    if args.hosts is None:  # with --hosts the first host needs these libraries, and this machine may lack them
        estimators_with(args.estimator)
        require_library(args.predictor)
    is_loaded_here = args.hosts is None and args.scheme not in known
    scheme = schemes_with([args.scheme])[args.scheme] if is_loaded_here else by_name(args.scheme)
    if scheme.needs_configured and args.network is None:
        raise InputError(f"--scheme {args.scheme} needs the rates of a network file: add --network")
    check_batch_flags(args, [args.batching] * bool(args.batching) + [JOINT_BATCHING] * scheme.sizes_batches)
    check_token_flags(args, [(args.parallel, scheme)] if args.parallel else [])
    if scheme.sizes_batches and args.batching:
        raise InputError(f"--scheme {args.scheme} sizes the batches itself: leave out --batching {args.batching}")
    if args.verify_sums and scheme.routes_itself:
        raise InputError(f"--verify-sums checks slices, and --scheme {args.scheme} has none: choose another scheme")
    one_node = _one_node(args)
    check_metrics_flag(args)
    if args.metrics is not None and scheme.routes_itself:
        raise InputError(
            f"--metrics {args.metrics}: --scheme {scheme.name} tells nothing: choose a scheme of nalb, or leave it out"
        )
    if args.hosts is None and args.root is None and args.checkpoints is not None:
        args.checkpoints = folder(args.checkpoints, "--checkpoints")
    if args.print_env and (args.max_restarts or args.min_nodes):
        raise InputError("--print-env starts nothing, so nothing again: leave out --max-restarts and --min-nodes")
    encryption = encryption_of(args, _leaves_here(args))
    if one_node is not None:
        one_node.check_keys(encryption)
    if args.print_env:  # another launcher starts the command, perhaps elsewhere: its Python cannot be asked
        framework = args.framework or (MXNET if args.hosts is not None else chosen_here())
    else:
        framework = framework_of(args, command, scheme is GLOO or _is_shorter(args))
    _check_framework(args, framework, scheme, encryption)
    return LaunchRequest(
        command,
        job_options(args, encryption),
        encryption,
        nodes_of(args.local),
        args.network,
        args.hosts,
        args.out,
        args.max_restarts,
        args.min_nodes,
        framework,
        one_node,
    )


def _one_node(args: argparse.Namespace) -> OneNode | None:
    """This machine's part in a job that other launchers start; None without --root. Raises InputError."""
    if args.root is None:
        if args.nodes is not None or args.rank is not None:
            raise InputError("--nodes and --rank say which node of a job this is: add --root, node 0's host")
        return None
    if args.nodes is None or args.rank is None:
        raise InputError(f"--root {args.root}: add --nodes and --rank: how many nodes there are, and which one this is")
    if args.max_restarts or args.min_nodes:
        raise InputError(
            "--root: another launcher starts the nodes, also again: leave out --max-restarts and --min-nodes"
        )
    nodes, rank = number_of("--nodes", args.nodes), number_of("--rank", args.rank)
    node = OneNode.found(args.root, nodes, rank, os.environ, print_line)
    if rank:  # the record and so the figures are node 0's; all nodes may share --out
        args.metrics = None
        args.out = args.out and str(Path(args.out) / node.place.name)
    return node


def _leaves_here(args: argparse.Namespace) -> bool:
    return args.hosts is not None or args.root is not None


def _is_shorter(args: argparse.Namespace) -> bool:
    return args.precision not in (None, DEFAULT_PRECISION)


def _check_framework(args: argparse.Namespace, framework: str, scheme: Scheme, encryption: Encryption) -> None:
    """Raise InputError for flags that jobs of this framework do not have."""
    is_shorter = _is_shorter(args)
    if framework != TORCH:
        if args.batching in BASELINES and not scheme.routes_itself:
            raise InputError(f"--batching {args.batching} is how MXNet's own KVStores train: add --scheme stock")
        if is_shorter:
            raise InputError(f"--precision {args.precision}: fewer bytes need the plane for PyTorch: leave it out")
        if scheme is GLOO:
            raise InputError(f"--scheme {scheme.name} is {scheme.meaning}: MXNet alone is --scheme {STOCK.name}")
        return
    if scheme.routes_itself and scheme is not GLOO:
        raise InputError(f"--scheme {scheme.name} is {scheme.meaning}: PyTorch alone is --scheme {GLOO.name}")
    if scheme is GLOO and is_shorter:
        raise InputError(f"--scheme {scheme.name} is {scheme.meaning}, which sums float32: leave out --precision")
    if scheme is GLOO and encryption.is_on:
        remedy = without_encryption(args, _leaves_here(args))
        raise InputError(f"--scheme {scheme.name} is {scheme.meaning}, which does not encrypt: {remedy}")
    if args.batching and scheme is GLOO:
        raise InputError(f"--scheme {scheme.name} is {scheme.meaning}, without a coordinator: leave out --batching")
    if args.batching in (FEDERATED, *BASELINES):
        raise InputError(f"--batching {args.batching} is of MXNet alone: leave it out")
    if args.predictor is not None and args.predictor not in PREDICTORS:
        raise InputError(f"--predictor {args.predictor} is of MXNet alone: choose one of {', '.join(PREDICTORS)}")
    if args.parallel or args.transport:
        flag = "--parallel" if args.parallel else "--transport"
        raise InputError(f"{flag} is of MXNet alone: leave it out")
