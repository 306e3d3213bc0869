"""`nalb launch [--local N | --network FILE | --hosts FILE] [--scheme S] [--print-env] -- COMMAND...`

Exit code: 0 when every process ended well; the code of the first that failed, 128 + n where signal n killed it or the
launcher; after restarts, the last attempt's; 2 for what the user gave, 3 for what the machine lacks, 4 where a process fell silent.
"""

import argparse
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from nalb.batching.schemes import BASELINES
from nalb.batching.speed import require_library
from nalb.checkpoints import folder
from nalb.errors import InputError, JobError, MachineError, listed
from nalb.launch.encryption import add_encryption_flags, is_encrypted, job_keys, keys_here
from nalb.launch.environments import hosts_lines, local_lines, network_lines
from nalb.launch.hosts import Hosts, load_hosts
from nalb.launch.job_phase import have_met
from nalb.launch.network import Changes, configured_message, inside, job_network, places_in
from nalb.launch.ports import free_pair
from nalb.launch.restarts import Attempt, Policy, see_through
from nalb.launch.roles import JobOptions, Place, process_specs
from nalb.launch.ssh import RemoteJob, unreachable
from nalb.launch.supervisor import Job, print_line
from nalb.settings import BATCHINGS, ESTIMATOR_NAMES, NETWORK_PREDICTORS, PREDICTORS, SCHEMES, batch_maxima
from nalb.transport.observer import Observer
from netem.emulation import Emulation
from netem.network_file import Network, find_network, load_network
from netem.rootless import ensure_privilege

LOOPBACK = "127.0.0.1"
NAMESPACE_PORT = 9091  # ps-lite's customary root port; a namespace has all its ports free
SIGNS_OF_A_RUN = ("samples.jsonl", "run.json", "batching.json", "logs", "checkpoints")  # it leaves one at least
SCHEMES_HELP = (
    "auto (default): the same as exact; exact: least time by the measured links, sees capped pairs; aware: Cai et al.'s"
    " pairwise method; average: equal slices; elastic: learns from each server's times alone; oracle: as exact, with the"
    " rates of the --network file; joint: shares and batch sizes together; stock, p3: MXNet alone"
)
ESTIMATORS_HELP = "of capacities: capacity (default), each node's best sustained rate; paper, the sum of link averages"
SOCKET_PATH_BYTES = 107  # sun_path of a unix socket, less its end


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--local", type=int, metavar="N", help="N nodes on this machine's loopback")
    where.add_argument("--network", metavar="FILE", help="the nodes of an emulated network (built for the run)")
    where.add_argument("--hosts", metavar="FILE", help="hosts reached over ssh, see docs/hosts.md")
    add_job_flags(parser)
    add_encryption_flags(parser)
    parser.add_argument("--scheme", metavar="S", default="auto", help=SCHEMES_HELP)
    parser.add_argument(
        "--batching", choices=BATCHINGS, help="who sizes the batches (default: the script); docs/batching.md"
    )
    add_batch_flags(parser)
    parser.add_argument(
        "--verify-sums", action="store_true", help="check the sum of every slice against an independent one; costs time"
    )
    parser.add_argument("--out", metavar="DIR", help="run directory for logs and samples (default: a new one in runs/)")
    parser.add_argument("--max-restarts", type=int, default=0, metavar="R", help="start again after a failure, R times")
    parser.add_argument("--min-nodes", type=int, metavar="K", help="restart without lost nodes while K are left")
    parser.add_argument("--checkpoints", metavar="DIR", help="for scripts that save (default: in the run directory)")
    parser.add_argument(
        "--print-env", action="store_true", help="print each process's environment and command, start nothing"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="after --: what each worker runs")


def add_job_flags(parser: argparse.ArgumentParser) -> None:
    """What launch and compare share."""
    parser.add_argument("--estimator", choices=ESTIMATOR_NAMES, default="capacity", help=ESTIMATORS_HELP)
    parser.add_argument(
        "--alpha-bytes", type=float, help="alpha of the slice size (default: follows from the measured rate)"
    )
    add_process_flags(parser)


def add_process_flags(parser: argparse.ArgumentParser) -> None:
    """What calibrate shares with them: how a job's processes run, whatever it sends."""
    parser.add_argument(
        "--transport", choices=("mxnet", "pyzmq"), help="libzmq under ps-lite (default: mxnet; encrypted: pyzmq)"
    )
    parser.add_argument(
        "--deadline-s", type=float, help="from a lasting fault to the end of everyone else (default: 10)"
    )


def add_batch_flags(parser: argparse.ArgumentParser) -> None:
    """What launch and compare share of the batch sizes."""
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


def main(args: argparse.Namespace) -> int:
    """Start the job and see it through; the job's exit code is ours."""
    if args.command[:1] != ["--"] or len(args.command) == 1:
        raise InputError("put -- before the command: nalb launch --local 4 -- python train.py --epochs 3")
    args.command = args.command[1:]
    if args.scheme not in SCHEMES:
        raise InputError(f"--scheme {args.scheme!r} is unknown: choose one of {', '.join(SCHEMES)}")
    if args.scheme == "oracle" and args.network is None:
        raise InputError("--scheme oracle needs the rates of a network file: add --network")
    check_batch_flags(args)
    if args.scheme == "joint" and args.batching:
        raise InputError(f"--scheme joint sizes the batches itself: leave out --batching {args.batching}")
    if args.verify_sums and is_stock(args):
        raise InputError(f"--verify-sums checks slices, and --scheme {args.scheme} has none: choose another scheme")
    if args.batching in BASELINES and not is_stock(args):
        raise InputError(f"--batching {args.batching} is how MXNet's own KVStores train: add --scheme stock")
    if args.local is not None and not 1 <= args.local <= 64:
        raise InputError(f"--local {args.local}: choose 1 to 64 nodes")
    if args.hosts is None and args.checkpoints is not None:
        args.checkpoints = _folder(args.checkpoints, "--checkpoints")
    if args.print_env:
        if args.max_restarts or args.min_nodes:
            raise InputError("--print-env starts nothing, so nothing again: leave out --max-restarts and --min-nodes")
        return _print_environment(args)
    if args.hosts is None:  # on hosts the coordinator's machine must have it
        require_library(args.predictor)
    if args.hosts is None and shutil.which(args.command[0]) is None:
        raise InputError(f"COMMAND {args.command[0]!r} is not a program here: give a path, or a name on PATH")
    return _see_through(args)


def check_batch_flags(args: argparse.Namespace) -> None:
    """InputError for flags that cannot be, or would have no effect."""
    if args.batch_total is not None and args.batch_total < 1:
        raise InputError(f"--batch-total {args.batch_total}: give 1 sample or more")
    if args.batch_most is not None:
        batch_maxima(args.batch_most, args.batch_most.count(",") + 1, "--batch-most")
    batchings = (args.batching or "").split(",") + ["joint"] * (getattr(args, "scheme", None) == "joint")
    if not any(batchings) and (args.batch_total or args.batch_most):
        raise InputError("--batch-total and --batch-most need --batching: else the script sizes its batches")
    if args.predictor and not {"lb-bsp", "joint"} & {word.partition("@")[0] for word in batchings}:
        raise InputError(f"--predictor {args.predictor} is of lb-bsp and joint alone: choose one, or leave it out")
    if args.predictor_models:
        if args.predictor not in NETWORK_PREDICTORS:
            raise InputError(f"--predictor-models: name the network: --predictor {', '.join(NETWORK_PREDICTORS)}")
        args.predictor_models = _folder(args.predictor_models, "--predictor-models")


def _folder(word: str, flag: str) -> str:
    """What a flag names, from the root on. InputError where its ~USER is unknown."""
    try:
        return str(Path(word).expanduser().absolute())
    except RuntimeError:
        raise InputError(f"{flag} {word}: no home of that name is known here: give the whole path") from None


def _see_through(args: argparse.Namespace) -> int:
    """Start the job where the flags say, and again after failures as far as they allow."""
    hosts = load_hosts(args.hosts) if args.hosts is not None else None
    network = load_network(find_network(args.network)) if args.network is not None else None
    nodes = [place.name for place in hosts.places()] if hosts else [f"n{i}" for i in range(args.local or 0)]
    nodes = [node.name for node in network.nodes] if network else nodes
    policy = Policy(args.max_restarts, args.min_nodes, None)
    policy.check(len(nodes))
    _check_restart_flags(args, hosts)
    if network is not None:
        ensure_privilege()
    run_dir = make_run_dir(args.out)
    if hosts is None:
        args.checkpoints = args.checkpoints or str(run_dir / "checkpoints")
        policy = replace(policy, checkpoints=Path(args.checkpoints))

    def run(attempt: Attempt) -> None:
        if hosts is None and not is_stock(args):
            try:
                (attempt.run_dir / "samples.jsonl").touch()  # empty until the coordinator is there: phase start
            except OSError as error:
                raise MachineError(f"{attempt.run_dir}: {error.strerror}: choose another --out") from None
        if hosts is not None:
            _on_hosts(args, hosts, attempt)
        elif network is not None:
            _in_network(args, network, attempt)
        else:
            _on_loopback(args, attempt)

    with ending_on_signals():
        probe = partial(unreachable, hosts.hosts) if hosts else set[str]
        last_dir = see_through(run, run_dir, nodes, policy, probe, print_line)
    print_line(f"nalb launch: all processes ended well; logs in {last_dir / 'logs'}")
    return 0


def _check_restart_flags(args: argparse.Namespace, hosts: Hosts | None) -> None:
    """InputError for what would fail at the first restart."""
    if args.min_nodes is not None and args.keys is not None:
        raise InputError("--min-nodes needs keys that are made anew for the nodes left: leave --keys out")
    if args.min_nodes is not None and args.batch_most is not None and "," in args.batch_most:
        raise InputError("--min-nodes changes who is which worker: give --batch-most one number for all")
    told = args.checkpoints is not None or hosts is None or folder.VARIABLE in dict(hosts.environment)
    if args.max_restarts and not told:
        raise InputError("--max-restarts with --hosts: name the hosts' folder for checkpoints with --checkpoints")


def _remaining(places: list[Place], attempt: Attempt) -> tuple[list[Place], int | None]:
    """The places that are not left out; and how many workers there were, where some are."""
    if not attempt.left_out:
        return places, None
    remaining = [place for place in places if place.name not in attempt.left_out]
    for role in ("worker", "server"):
        if not any(getattr(place, f"is_{role}") for place in remaining):
            raise InputError(f"without {listed(attempt.left_out)} no {role} is left: the job cannot go on")
    return remaining, sum(place.is_worker for place in places)


def _on_loopback(args: argparse.Namespace, attempt: Attempt) -> None:
    run_dir = attempt.run_dir
    with ExitStack() as stack:
        observers = None if is_stock(args) else observer_address(stack, run_dir)
        places, first_workers = _remaining(_loopback_places(args), attempt)
        options = job_options(args, stack.enter_context(free_pair(LOOPBACK)), observers, run_dir)
        keys_dir = keys_here(args, places, run_dir, stack)
        options = replace(options, keys_dir=keys_dir, first_workers=first_workers)
        specs = process_specs(places, args.command, options, os.environ)
        with Job(
            specs, lambda spec: list(spec.argv), os.environ, run_dir / "logs", print_line, has_joined(options)
        ) as job:
            job.wait()


def _in_network(args: argparse.Namespace, network: Network, attempt: Attempt) -> None:
    run_dir = attempt.run_dir
    with ExitStack() as stack:
        observers = None if is_stock(args) else observer_address(stack, run_dir)
        emulation = stack.enter_context(job_network(network))
        places, first_workers = _remaining(places_in(emulation), attempt)
        options = job_options(args, NAMESPACE_PORT, observers, run_dir)
        keys_dir = keys_here(args, places, run_dir, stack)
        options = replace(options, keys_dir=keys_dir, first_workers=first_workers)
        specs = process_specs(places, args.command, options, os.environ)
        logs = run_dir / "logs"
        job = stack.enter_context(Job(specs, inside(emulation), os.environ, logs, print_line, has_joined(options)))
        nodes = [place.name for place in places]
        changes = Changes(network, run_dir, nodes)
        if observers is None:
            stack.enter_context(changes.start(emulation))
            job.wait(changes.check)
            return
        observer = stack.enter_context(Observer(observers))
        observer.send(configured_message(network, 0.0, nodes))
        while not job.finished():
            for event in observer.events(0.1):
                if event.kind == "layout" and not changes.started:
                    stack.enter_context(changes.start(emulation))
            changes.tell(observer.send)


def _on_hosts(args: argparse.Namespace, hosts: Hosts, attempt: Attempt) -> None:
    places, first_workers = _remaining(hosts.places(), attempt)
    keys = job_keys(args, places) if is_encrypted(args) else {}
    options = replace(_hosts_options(args, hosts), first_workers=first_workers)
    specs = process_specs(places, args.command, options, {})
    with RemoteJob(specs, hosts, keys, attempt.run_dir / "logs", print_line) as job:
        job.wait()


def is_stock(args: argparse.Namespace) -> bool:
    """Whether MXNet shall run alone, without shim and control plane."""
    return args.scheme in ("stock", "p3")


def _loopback_places(args: argparse.Namespace) -> list[Place]:
    """All of 127.0.0.0/8 is this machine; with keys each node needs an address of its own."""
    return [Place(f"n{i}", f"127.0.0.{i + 1}" if is_encrypted(args) else LOOPBACK) for i in range(args.local)]


def job_options(
    args: argparse.Namespace, port: int, observers: str | None, run_dir: Path | None, hold: bool = False
) -> JobOptions:
    """From the flags that launch and compare share."""
    if args.deadline_s is not None and not 1 <= args.deadline_s <= 86_400:
        raise InputError(f"--deadline-s {args.deadline_s:g}: choose 1 to 86400")
    if is_encrypted(args) and args.transport == "mxnet":
        raise InputError("--transport mxnet has no fast CURVE: leave it out, or do not encrypt")
    return JobOptions(
        root_port=port,
        scheme=getattr(args, "scheme", "auto"),
        estimator=args.estimator,
        alpha_bytes=args.alpha_bytes,
        transport=args.transport or ("pyzmq" if is_encrypted(args) else "mxnet"),
        deadline_s=args.deadline_s,
        observers=observers,
        hold=hold,
        samples_path=str(run_dir / "samples.jsonl") if run_dir else None,
        verify_sums=getattr(args, "verify_sums", False),
        batching=getattr(args, "batching", None),
        batch_total=getattr(args, "batch_total", None),
        batch_most=getattr(args, "batch_most", None),
        predictor=getattr(args, "predictor", None),
        predictor_models=getattr(args, "predictor_models", None),
        checkpoints=getattr(args, "checkpoints", None),
    )


def _hosts_options(args: argparse.Namespace, hosts: Hosts) -> JobOptions:
    return replace(job_options(args, hosts.root_port, None, None), extra=hosts.environment)


def has_joined(options: JobOptions) -> Callable[[], bool] | None:
    """Whether the coordinator has noted that all processes are there; None where there is no coordinator to ask."""
    if options.is_pure or options.samples_path is None:
        return None
    return partial(have_met, Path(options.samples_path))


def make_run_dir(out: str | None) -> Path:
    """The run directory, new or without a run; InputError where it holds one already."""
    path = (Path(out) if out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")).absolute()
    try:
        if not out:
            return _new_folder(path)
        if any((path / name).exists() for name in SIGNS_OF_A_RUN):
            raise InputError(f"{path} already holds a run: choose another --out")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror}: choose another") from None
    return path


def _new_folder(path: Path) -> Path:
    """Of this name, or with a number behind it where another run began in the same second."""
    new, number = path, 1
    while True:
        try:
            new.mkdir(parents=True)
            return new
        except FileExistsError:
            number += 1
            new = path.with_name(f"{path.name}-{number}")


def observer_address(stack: ExitStack, run_dir: Path, name: str = "observers") -> str:
    """An ipc address in the run directory, so that nothing lies elsewhere however the run ends.

    An abstract address would leave no file, but is seen in one network namespace only. A path too long for a socket is
    named through this process's handle of the directory, which is short.
    """
    path = run_dir / name
    stack.callback(path.unlink, missing_ok=True)
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return f"ipc://{path}"
    handle = os.open(run_dir, os.O_PATH | os.O_DIRECTORY)
    stack.callback(os.close, handle)
    return f"ipc:///proc/{os.getpid()}/fd/{handle}/{name}"


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Leave every context on the first of Ctrl-C, SIGTERM and SIGHUP, undisturbed by a second, and say so: JobError.

    A signal that was ignored at the start, as under nohup, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def end(number: int, frame: object) -> None:
        del frame
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt

    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = {number: signal.signal(number, end) for number in watched if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    except KeyboardInterrupt:
        if not received:
            raise
        raise JobError(
            f"ended by {signal.Signals(received[0]).name}, with every process of the job", 128 + received[0]
        ) from None
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _print_environment(args: argparse.Namespace) -> int:
    if is_encrypted(args) and args.keys is None:
        raise InputError(
            "--print-env needs keys that last: `nalb keys --out DIR`, then --keys DIR, the same on each host; or --plain"
        )
    keys_dir = str(Path(args.keys).absolute()) if args.keys else None
    if args.hosts is not None:
        hosts = load_hosts(args.hosts)
        options = replace(_hosts_options(args, hosts), keys_dir=args.keys)
        lines = hosts_lines(hosts, process_specs(hosts.places(), args.command, options, {}))
    elif args.network is not None:
        emulation = Emulation(load_network(find_network(args.network)))
        options = replace(job_options(args, NAMESPACE_PORT, None, None), keys_dir=keys_dir)
        lines = network_lines(
            emulation, process_specs(places_in(emulation), args.command, options, os.environ), os.environ
        )
    else:
        with free_pair(LOOPBACK) as port:
            options = replace(job_options(args, port, None, None), keys_dir=keys_dir)
        lines = local_lines(process_specs(_loopback_places(args), args.command, options, os.environ), os.environ)
    print("\n".join(lines))
    return 0
