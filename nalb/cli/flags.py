"""The options that several commands share: adds their flags, checks them and makes JobOptions of them.

No command imports another, so shared flags stand here. A flag for an option of the job has the name of its field in JobOptions.
"""

import argparse
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path

from nalb import __version__, workloads
from nalb.errors import InputError, as_text, did_you_mean, listed
from nalb.extensions import ESTIMATOR_GROUP, is_own
from nalb.extras import require
from nalb.launch.encryption import Encryption
from nalb.launch.frameworks import FRAMEWORKS, MXNET, TORCH, chosen, chosen_on
from nalb.launch.hosts import load_hosts
from nalb.launch.network import configured_capacities, job_nodes
from nalb.live.following import check_port, metrics_beside
from nalb.measurement.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from nalb.options import BATCH_MOST, JOINT_BATCHING, NETWORK_PREDICTORS, PREDICTORS, STALENESS_MOST, JobOptions
from nalb.planning.nodes import Capacities, Node
from nalb.planning.slices import Tensor
from nalb.reporting.about_file import running, write_about
from nalb.reporting.attempts import attempts_line
from nalb.schemes import AUTO, GLOO, SCHEMES, Scheme
from nalb.settings import batch_maxima
from nalb.tokens.policies import FELAS, conflict
from nalb.tokens.shape import read_weights
from nalb.tokens.stragglers import FORMS, Stragglers
from netem.network_file import find_network, load_network
from netem.rootless import MARK
from netem.schedule import pair_caps_at

LOW_ALPHA_BYTES, HIGH_ALPHA_BYTES = 1e-3, 1e12
HIGH_MODEL_BYTES = 1e12  # 1 TB
PLAIN = Encryption()
LOCAL_MOST = 64  # nodes on loopback
LOOPBACK, HIGH_PORT = "127.0.0.1", 65535
OWN_HELP = "; or your own, package.module:NAME"
ESTIMATORS_HELP = (
    "of capacities: capacity (default), each node's best sustained rate; paper, the sum of its links' (Cai et al.)"
)


def name_of(known: Iterable[str], group: str) -> Callable[[str], str]:
    """A type for argparse that accepts the known names and words that name a user's own extension of this group."""

    def check(word: str) -> str:
        if word in known or is_own(word, group):
            return word
        raise argparse.ArgumentTypeError(
            f"{word!r} is unknown: {did_you_mean(word, known)}choose of {', '.join(known)}, package.module:NAME"
        )

    return check


def schemes_help() -> str:
    """The help text with the meaning of each scheme; schemes with the same meaning are listed together."""
    names: dict[str, list[str]] = {}
    for name, scheme in {**SCHEMES, GLOO.name: GLOO}.items():
        if name == scheme.name:
            names.setdefault(scheme.meaning, []).append(name)
    meanings = [f"{', '.join(alike)}: {meaning}" for meaning, alike in names.items()]
    return "; ".join([f"{AUTO} (default): the same as {SCHEMES[AUTO].name}", *meanings]) + OWN_HELP


def check_run(run_dir: Path) -> None:
    """Raise InputError where there is no such directory. Prints which attempt of a restarted job it is, and why others failed."""
    if not os.path.isdir(run_dir):  # as False too where the name is too long
        raise InputError(f"{run_dir}: no such directory: give the run directory that the job printed, or its --out")
    if told := attempts_line(run_dir):
        print(as_text(told))


def add_place_flags(parser: argparse.ArgumentParser) -> "argparse._MutuallyExclusiveGroup":
    """Add the flags that say where a job runs; one of the returned group has to be given."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--local", metavar="N", help="N nodes on this machine's loopback; 3+2: two sites, of 3 and 2")
    where.add_argument(
        "--network",
        metavar="NETWORK",
        help="an emulated network, built for the run: a file, or the name of a carried one",
    )
    where.add_argument("--hosts", metavar="FILE", help="hosts reached over ssh, see docs/hosts.md")
    return where


def nodes_of(local: str | None) -> tuple[int, ...] | None:
    """The number of nodes of each site that --local gives, N or N+N+...; None without the flag. Raises InputError."""
    if local is None:
        return None
    counts = tuple(int(count) if count.isdecimal() else 0 for count in local.split("+"))
    if min(counts) < 1 or sum(counts) > LOCAL_MOST:
        raise InputError(f"--local {local}: choose 1 to {LOCAL_MOST} nodes, such as 4, or of each site, such as 3+2")
    return counts


def command_of(args: argparse.Namespace, example: str) -> tuple[str, ...]:
    """The command after `--`. example: a whole command line. Raises InputError where there is none, or it is no program here."""
    words = tuple(args.command)
    if words[:1] != ("--",) or len(words) == 1:
        raise InputError(f"put -- before the command: {example}")
    starts_here = args.hosts is None and not getattr(args, "print_env", False)
    if starts_here and shutil.which(words[1]) is None:
        raise InputError(f"COMMAND {words[1]!r} is not a program here: give a path, or a name on PATH")
    if args.hosts is not None:
        for word in words:
            _check_text("COMMAND", word)
    return words[1:]


def _check_text(what: str, word: str) -> None:
    """Raise InputError for a word that cannot go to hosts. what: the flag that gives it."""
    if as_text(word) != word:
        raise InputError(f"{what}: {word!r} is not UTF-8 text, and goes to the hosts as text: rename the file")


def encryption_of(args: argparse.Namespace, leaves_here: bool) -> Encryption:
    """The encryption that the flags choose. leaves_here: to other machines; then it is on unless --plain is given."""
    is_on = args.encrypt or args.keys is not None or (leaves_here and not args.plain)
    return Encryption(is_on, args.keys)


def without_encryption(args: argparse.Namespace, leaves_here: bool) -> str:
    """How to turn encryption off, as words of a message, where `encryption_of` these arguments is on."""
    if not (given := "--encrypt" if args.encrypt else "--keys" if args.keys is not None else ""):
        return "add --plain"
    return f"give --plain in place of {given}" if leaves_here else f"leave out {given}"


def framework_of(args: argparse.Namespace, command: Sequence[str], needs_torch: bool) -> str:
    """What the workers' Python trains with. Raises InputError or MachineError. needs_torch: the flags fit PyTorch alone."""
    if args.hosts is None:
        return chosen(args.framework, command)
    otherwise = TORCH if needs_torch else MXNET
    return args.framework or chosen_on(load_hosts(args.hosts).hosts[0], command, otherwise)


def add_framework_flag(parser: argparse.ArgumentParser, others: str = "") -> None:
    """Add the flag for what the workers train with. others: what the help says of jobs without a script."""
    parser.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        help=f"what trains (default: the one that the workers' Python has{others})",
    )


def add_job_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a job's planning, which launch and compare share."""
    parser.add_argument(
        "--estimator",
        type=name_of(ESTIMATORS, ESTIMATOR_GROUP),
        default=DEFAULT_ESTIMATOR,
        metavar="E",
        help=ESTIMATORS_HELP + OWN_HELP,
    )
    parser.add_argument(
        "--alpha-bytes", type=float, help="alpha of the slice size (default: follows from the measured rate)"
    )
    add_process_flags(parser)


def add_process_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a job's processes, which launch, compare and calibrate share."""
    parser.add_argument(
        "--transport", choices=("mxnet", "pyzmq"), help="libzmq under ps-lite (default: mxnet; encrypted: pyzmq)"
    )
    parser.add_argument(
        "--deadline-s", type=float, help="from a lasting fault to the end of everyone else (default: 10)"
    )


def add_batch_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for batch sizes, which launch and compare share."""
    parser.add_argument("--batch-total", type=int, metavar="N", help="samples of an iteration, over all workers")
    parser.add_argument("--batch-most", metavar="N[,N...]", help="most samples of a worker, for all or for each")
    parser.add_argument(
        "--predictor", choices=PREDICTORS, help="of lb-bsp and joint: how they foresee speeds (default: memoryless)"
    )
    parser.add_argument(
        "--predictor-models",
        metavar="DIR",
        help="networks begin with the models stored here, and leave theirs at the end",
    )


def add_token_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for training by tokens, for scripts that use fela.Trainer; each command adds --parallel itself."""
    parser.add_argument(
        "--weights",
        dest="token_weights",
        metavar="1,W,...",
        help="of fela's sub-models (default: tuned while training)",
    )
    parser.add_argument(
        "--subset", dest="token_subset", type=int, metavar="N", help="workers that compute fela's last sub-model"
    )
    parser.add_argument(
        "--apart", dest="token_apart", action="store_true", help="the subset computes the last sub-model alone"
    )
    parser.add_argument("--staleness", type=int, metavar="S", help="iterations that a worker may lead by (default: 0)")
    parser.add_argument("--stragglers", metavar="S", help=f"workers that sleep, for experiments: {FORMS}")


def add_encryption_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose a job's encryption."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--encrypt", action="store_true", help="with keys made for this job (default with --hosts)")
    choice.add_argument("--keys", metavar="DIR", help="encrypt with the keys that `nalb keys` made there")
    choice.add_argument("--plain", action="store_true", help="neither encrypt nor authenticate (default otherwise)")


def job_options(args: argparse.Namespace, encryption: Encryption = PLAIN) -> JobOptions:
    """The job's options from a command's flags. Raises InputError for flags that cannot be."""
    said = {one.name: vars(args)[one.name] for one in fields(JobOptions) if one.name in vars(args)}
    deadline_s, transport = said.get("deadline_s"), said.get("transport")
    if deadline_s is not None and not 1 <= deadline_s <= 86_400:
        raise InputError(f"--deadline-s {deadline_s:g}: choose 1 to 86400")
    alpha_bytes = said.get("alpha_bytes")
    if alpha_bytes is not None and not LOW_ALPHA_BYTES <= alpha_bytes <= HIGH_ALPHA_BYTES:
        raise InputError(f"--alpha-bytes {alpha_bytes:g}: choose {LOW_ALPHA_BYTES:g} to {HIGH_ALPHA_BYTES:g}")
    if encryption.is_on and transport == "mxnet":
        raise InputError("--transport mxnet has no fast CURVE: leave it out, or do not encrypt")
    said["transport"] = transport or ("pyzmq" if encryption.is_on else "mxnet")
    if said.get("predictor_models"):
        said["predictor_models"] = folder(said["predictor_models"], "--predictor-models")
    if getattr(args, "hosts", None) is not None:
        for name in ("checkpoints", "predictor_models"):
            _check_text(f"--{name.replace('_', '-')}", said.get(name) or "")
    return JobOptions(**said)


def check_batch_total(samples: int | None) -> None:
    """Raise InputError for a --batch-total that no job can have."""
    if samples is not None and not 1 <= samples <= BATCH_MOST:
        raise InputError(f"--batch-total {samples}: give 1 to {BATCH_MOST} samples")


def check_batch_flags(args: argparse.Namespace, batchings: Sequence[str]) -> None:
    """Raise InputError for flags of add_batch_flags that are wrong or would have no effect on these batchings."""
    check_batch_total(args.batch_total)
    if args.batch_most is not None:
        batch_maxima(args.batch_most, args.batch_most.count(",") + 1, "--batch-most")
    if not batchings and (args.batch_total or args.batch_most):
        raise InputError("--batch-total and --batch-most need --batching: else the script sizes its batches")
    if args.predictor and not {"lb-bsp", JOINT_BATCHING} & {word.partition("@")[0] for word in batchings}:
        raise InputError(f"--predictor {args.predictor} is of lb-bsp and joint alone: choose one, or leave it out")
    if args.predictor_models and args.predictor not in NETWORK_PREDICTORS:
        raise InputError(f"--predictor-models: name the network: --predictor {', '.join(NETWORK_PREDICTORS)}")


def check_token_flags(args: argparse.Namespace, parallels: Sequence[tuple[str, Scheme]]) -> None:
    """Raise InputError for flags of add_token_flags that are wrong or do not fit each other, these ways or their schemes."""
    given = {
        "--weights": args.token_weights,
        "--subset": args.token_subset,
        "--apart": args.token_apart or None,
        "--staleness": args.staleness,
        "--stragglers": args.stragglers,
    }
    if not parallels:
        if unused := [flag for flag, value in given.items() if value is not None]:
            raise InputError(f"{' and '.join(unused)} {'is' if len(unused) == 1 else 'are'} of tokens: add --parallel")
        return
    has_weights, has_subset = args.token_weights is not None, args.token_subset is not None
    is_fela = any(name in FELAS for name, _ in parallels)  # fela's flags then apply to fela alone
    for name, scheme in parallels:
        if args.batching or scheme.sizes_batches:
            raise InputError(
                "--parallel shares out tokens, which need no batch sizes: leave out --batching and --scheme joint"
            )
        if scheme.routes_itself:
            raise InputError(
                f"--parallel needs nalb's store, and --scheme {scheme.name} is MXNet alone: choose another scheme"
            )
        is_told = name in FELAS or not is_fela
        if why := conflict(
            name, has_weights and is_told, has_subset and is_told, args.staleness or 0, args.token_apart and is_told
        ):
            raise InputError(f"--parallel {name}: {why}")
    if args.token_subset is not None and args.token_subset < 1:
        raise InputError(f"--subset {args.token_subset}: give 1 worker or more")
    if args.staleness is not None and not 0 <= args.staleness <= STALENESS_MOST:
        raise InputError(f"--staleness {args.staleness}: give 0 to {STALENESS_MOST} iterations")
    if has_weights:
        read_weights(args.token_weights)
    if args.stragglers is not None:
        Stragglers.read(args.stragglers)


def folder(word: str, flag: str) -> str:
    """The absolute path of the folder that a flag names. Raises InputError where its ~USER is unknown."""
    try:
        return str(Path(word).expanduser().absolute())
    except RuntimeError:
        raise InputError(f"{flag} {word}: no home of that name is known here: give the whole path") from None


def links_of(file: str) -> tuple[list[Node], Capacities]:
    """The nodes of a network file and their capacities at 0 s, bytes per second. Says on stderr which caps are left out."""
    network = load_network(find_network(file))
    capacities = configured_capacities(network, 0.0)
    if capacities.uplinks is not None and (caps := pair_caps_at(network, 0.0)):
        pairs = listed([f"{source} -> {target}" for source, target in caps])
        print(f"nalb: {network.name} has sites, so its caps of pairs are left out here: {pairs}", file=sys.stderr)
    return job_nodes(network), capacities


def tensors_of(replay: str | None, model_bytes_word: str | None) -> list[Tensor]:
    """The tensors of the carried workload `replay`, or else one tensor of the size in --model-bytes. Raises InputError."""
    if replay is None and model_bytes_word is None:
        raise InputError("the model's size is missing: give --model-bytes or --replay")
    given = None if model_bytes_word is None else parse_number("--model-bytes", model_bytes_word, HIGH_MODEL_BYTES)
    if given is not None and given != int(given):
        raise InputError(f"--model-bytes {model_bytes_word} is not a whole number: give whole bytes")
    if replay is None:
        assert given is not None
        whole = int(given)
        return [Tensor("model", whole // 4, "float32") if whole % 4 == 0 else Tensor("model", whole, "uint8")]
    tensors = [Tensor(t.name, t.elements, t.dtype) for t in workloads.load(replay)]
    size = sum(tensor.size_bytes for tensor in tensors)
    if given is not None and given != size:
        raise InputError(f"--model-bytes {model_bytes_word} is not {replay}'s {size} bytes: leave one of the two out")
    return tensors


def parse_names(flag: str, text: str) -> list[str]:
    """The names in a comma-separated flag. Raises InputError where one is empty or is repeated."""
    names = [word.strip() for word in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise InputError(f"{flag} {text!r}: name at least one, each once, with a comma between two")
    return names


def parse_number(name: str, word: str, high: float, low: float | None = None) -> float:
    """Parse a number from `low` to `high`, or above 0 where `low` is None. Raises InputError."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not (value > 0 if low is None else value >= low) or value > high:
        least = "above 0" if low is None else f"from {low:g}"
        raise InputError(f"{name} {word!r} is not a number {least} and up to {high:g}: correct it")
    return value


def of_levels(wan_s: float, lan_s: float) -> str:
    """Both bounds of sums by sites and the level that binds, in words. The arguments are in seconds."""
    return f"uplinks {wan_s:.4g} s, LANs {lan_s:.4g} s: the {'uplinks' if wan_s >= lan_s else 'LANs'} bind"


def add_metrics_flag(parser: argparse.ArgumentParser) -> None:
    """Add --metrics."""
    parser.add_argument(
        "--metrics",
        type=int,
        metavar="PORT",
        help="serve figures to Prometheus on loopback meanwhile, as `nalb metrics` does",
    )


def check_metrics_flag(args: argparse.Namespace) -> None:
    """Raise InputError for a port that nothing can listen on, MachineError where the extra is missing."""
    if args.metrics is not None:
        require("prometheus_client", "--metrics")
        if not 1 <= args.metrics <= HIGH_PORT:
            raise InputError(f"--metrics {args.metrics}: give a port, 1 to {HIGH_PORT}")
        if args.network is not None and MARK in os.environ:
            raise InputError(
                f"--metrics {args.metrics}: without root the command has a loopback of its own, which nobody else reaches:"
                f" leave it out, and run `nalb metrics DIR --port {args.metrics}` beside the job"
            )
        check_port(LOOPBACK, args.metrics, "--metrics")


def around_of(
    args: argparse.Namespace, iterations: int | None = None
) -> Callable[[Path], AbstractContextManager[None]]:
    """What a run directory and its job are put into: about.json, and metrics meanwhile if asked for.

    iterations: how many the run will have; None: not known.
    """

    @contextmanager
    def around(run_dir: Path) -> Iterator[None]:
        write_about(run_dir, __version__, args.words, iterations, getattr(args, "max_restarts", 0))
        with running(run_dir), metrics_beside(run_dir, args.metrics):
            yield

    return around
