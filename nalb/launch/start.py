"""Runs a job on loopback, in an emulated network or on hosts, as the user asked, and restarts it after failures."""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from nalb.checkpoints import folder, lock
from nalb.errors import InputError, MachineError, listed
from nalb.failures import JobFailed
from nalb.launch.encryption import Encryption, job_keys, keys_here
from nalb.launch.environments import hosts_lines, local_lines, network_lines
from nalb.launch.hosts import Hosts, load_hosts
from nalb.launch.job_phase import have_met
from nalb.launch.network import (
    NAMESPACE_PORT,
    Changes,
    configured_message,
    followed,
    inside,
    job_network,
    job_nodes,
    places_in,
)
from nalb.launch.ports import free_pair
from nalb.launch.restarts import Attempt, Policy, see_through
from nalb.launch.roles import Place, ProcessSpec, process_specs
from nalb.launch.run_dir import make_run_dir, observer_address
from nalb.launch.signals import ending_on_signals
from nalb.launch.ssh import RemoteJob, unreachable
from nalb.launch.supervisor import Job, print_line, print_unfinished
from nalb.options import JobOptions
from nalb.schemes import by_name
from nalb.transport.observer import Observer
from netem.emulation import Emulation
from netem.network_file import Network, find_network, load_network
from netem.rootless import ensure_privilege

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LaunchRequest:
    """The arguments of `nalb launch`; one of local, network and hosts is given."""

    command: tuple[str, ...]  # the command that each worker runs
    options: JobOptions
    encryption: Encryption
    local: tuple[int, ...] | None  # the number of nodes of each site, on this machine's loopback
    network: str | None  # the name or path of a network file
    hosts: str | None  # the path of a hosts file
    out: str | None  # the run directory; None: a new one under runs/
    max_restarts: int = 0
    min_nodes: int | None = None

    @property
    def is_stock(self) -> bool:
        """Whether MXNet runs alone, without shim and control plane."""
        return by_name(self.options.scheme).routes_itself


def launch(request: LaunchRequest, around: Callable[[Path], AbstractContextManager[object]] = nullcontext) -> Path:
    """Run the job to its end, with the restarts that are allowed; return the run directory of the attempt that ended well.

    around: makes from the new run directory a context that the job runs in.
    Raises InputError or MachineError before the job starts, and JobError for the last failure.
    """
    hosts = load_hosts(request.hosts) if request.hosts is not None else None
    network = load_network(find_network(request.network)) if request.network is not None else None
    places = hosts.places() if hosts else job_nodes(network) if network else _loopback_places(request)
    nodes = [place.name for place in places]
    policy = Policy(request.max_restarts, request.min_nodes, None)
    policy.check(len(nodes))
    _check_restarts(request, hosts, sum(not place.is_worker for place in places))
    if network is not None:
        ensure_privilege()
    run_dir = make_run_dir(request.out)
    job = f"nalb launch (process {os.getpid()} on {socket.gethostname()}, run directory {run_dir})"
    request = replace(request, options=replace(request.options, checkpoints_job=job))
    is_shared = hosts is None and request.options.checkpoints is not None
    if hosts is None:
        checkpoints = request.options.checkpoints or str(run_dir / "checkpoints")
        request = replace(request, options=replace(request.options, checkpoints=checkpoints))
        policy = replace(policy, checkpoints=Path(checkpoints))

    def run(attempt: Attempt) -> None:
        if hosts is None and not request.is_stock:
            try:
                (attempt.run_dir / "samples.jsonl").touch()  # empty until the coordinator is there: phase start
            except OSError as error:
                raise MachineError(f"{attempt.run_dir}: {error.strerror}: choose another --out") from None
        if hosts is not None:
            _on_hosts(request, hosts, attempt)
        elif network is not None:
            _in_network(request, network, attempt)
        else:
            _on_loopback(request, attempt)

    claimed = lock.claim(Path(checkpoints), job) if is_shared else nullcontext()
    with ending_on_signals(), around(run_dir), claimed:
        probe = partial(unreachable, hosts.hosts) if hosts else set[str]
        return see_through(run, run_dir, nodes, policy, probe, print_line)


def environment_lines(request: LaunchRequest) -> list[str]:
    """The lines that --print-env prints: each process's environment and command. No process is started."""
    encryption = request.encryption
    if encryption.is_on and encryption.keys is None:
        raise InputError(
            "--print-env needs keys that last: `nalb keys --out DIR`, then --keys DIR, the same on each host; or --plain"
        )
    if request.hosts is not None:
        hosts = load_hosts(request.hosts)
        return hosts_lines(hosts, _host_specs(request, hosts, hosts.places(), None, encryption.keys))
    if request.network is not None:
        emulation = Emulation(load_network(find_network(request.network)))
        options = replace(request.options, root_port=NAMESPACE_PORT)
        specs = process_specs(places_in(emulation), request.command, options, os.environ, encryption.keys_dir)
        return network_lines(emulation, specs, os.environ)
    with free_pair(LOOPBACK) as port:
        options = replace(request.options, root_port=port)
    specs = process_specs(_loopback_places(request), request.command, options, os.environ, encryption.keys_dir)
    return local_lines(specs, os.environ)


def _check_restarts(request: LaunchRequest, hosts: Hosts | None, without_worker: int) -> None:
    """Raise InputError for options that would fail at a restart. without_worker: the number of nodes without a worker."""
    most = request.options.batch_most
    if request.min_nodes is not None and request.encryption.keys is not None:
        raise InputError("--min-nodes needs keys that are made anew for the nodes left: leave --keys out")
    if request.min_nodes is not None and most is not None and "," in most:
        raise InputError("--min-nodes changes who is which worker: give --batch-most one number for all")
    subset = request.options.token_subset
    if request.min_nodes is not None and subset is not None:
        fewest = subset + request.options.token_apart + without_worker  # with --apart, one worker beside the subset
        if request.min_nodes < fewest:
            raise InputError(
                f"--min-nodes {request.min_nodes} may leave too few workers for --subset {subset}: choose {fewest} or more"
            )
    told = request.options.checkpoints is not None or hosts is None or folder.VARIABLE in dict(hosts.environment)
    if request.max_restarts and not told:
        raise InputError("--max-restarts with --hosts: name the hosts' folder for checkpoints with --checkpoints")


def _remaining(places: list[Place], attempt: Attempt) -> tuple[list[Place], int | None]:
    """The places that are not left out, and the job's first number of workers; that is None where no place is left out."""
    if not attempt.left_out:
        return places, None
    remaining = [place for place in places if place.name not in attempt.left_out]
    for role in ("worker", "server"):
        if not any(getattr(place, f"is_{role}") for place in remaining):
            raise InputError(f"without {listed(attempt.left_out)} no {role} is left: the job cannot go on")
    return remaining, sum(place.is_worker for place in places)


def _on_loopback(request: LaunchRequest, attempt: Attempt) -> None:
    run_dir = attempt.run_dir
    with ExitStack() as stack:
        observers = None if request.is_stock else observer_address(stack, run_dir)
        port = stack.enter_context(free_pair(LOOPBACK))
        specs, options = _specs_here(request, _loopback_places(request), attempt, port, observers, stack)
        with Job(
            specs,
            lambda spec: list(spec.argv),
            os.environ,
            run_dir / "logs",
            print_line,
            has_joined(options),
            show_unfinished=print_unfinished,
        ) as job:
            job.wait()


def _in_network(request: LaunchRequest, network: Network, attempt: Attempt) -> None:
    run_dir = attempt.run_dir
    with ExitStack() as stack:
        observers = None if request.is_stock else observer_address(stack, run_dir)
        emulation = stack.enter_context(job_network(network))
        specs, options = _specs_here(request, places_in(emulation), attempt, NAMESPACE_PORT, observers, stack)
        logs = run_dir / "logs"
        job = stack.enter_context(
            Job(
                specs,
                inside(emulation),
                os.environ,
                logs,
                print_line,
                has_joined(options),
                emulation.check,
                print_unfinished,
            )
        )
        nodes = {spec.node for spec in specs}
        changes = Changes(network, run_dir, nodes)
        if observers is None:
            stack.enter_context(changes.start(emulation))
            job.wait(changes.check)
            return
        observer = stack.enter_context(Observer(observers, may_miss=True))
        observer.send(configured_message(network, 0.0, nodes))
        for _ in followed(job, observer, changes, emulation, stack):
            pass


def _specs_here(
    request: LaunchRequest, places: list[Place], attempt: Attempt, port: int, observers: str | None, stack: ExitStack
) -> tuple[list[ProcessSpec], JobOptions]:
    """The processes of an attempt on this machine, and the options that they share."""
    remaining, first_workers = _remaining(places, attempt)
    options = replace(
        request.options,
        root_port=port,
        observers=observers,
        samples_path=str(attempt.run_dir / "samples.jsonl"),
        first_workers=first_workers,
    )
    keys_dir = keys_here(request.encryption, remaining, attempt.run_dir, stack)
    return process_specs(remaining, request.command, options, os.environ, keys_dir), options


def _on_hosts(request: LaunchRequest, hosts: Hosts, attempt: Attempt) -> None:
    places, first_workers = _remaining(hosts.places(), attempt)
    keys = job_keys(request.encryption, places) if request.encryption.is_on else {}
    specs = _host_specs(request, hosts, places, first_workers)
    with RemoteJob(specs, hosts, keys, attempt.run_dir / "logs", print_line, print_unfinished) as job:
        try:
            job.wait()
        except JobFailed as error:
            if error.failure.has_moment or request.options.is_pure:
                raise
            phase, iteration = job.moment
            failure = structs.replace(error.failure, phase=phase, iteration=iteration)
            raise JobFailed(failure, error.exit_code, error.where) from None


def _host_specs(
    request: LaunchRequest,
    hosts: Hosts,
    places: Sequence[Place],
    first_workers: int | None,
    keys_dir: str | None = None,
) -> list[ProcessSpec]:
    options = replace(request.options, root_port=hosts.root_port, first_workers=first_workers)
    return process_specs(places, request.command, options, {}, keys_dir, dict(hosts.environment))


def _loopback_places(request: LaunchRequest) -> list[Place]:
    """The job's places on loopback; with keys each node gets an address of its own, as the whole of 127.0.0.0/8 is this machine."""
    is_on = request.encryption.is_on
    sites = [f"site{k}" for k, count in enumerate(request.local or ()) for _ in range(count)]
    return [Place(f"n{i}", f"127.0.0.{i + 1}" if is_on else LOOPBACK, site=site) for i, site in enumerate(sites)]


def has_joined(options: JobOptions) -> Callable[[], bool] | None:
    """A function that tells whether all processes have met, from the coordinator's file; None where there is no such file."""
    if options.is_pure or options.samples_path is None:
        return None
    return partial(have_met, Path(options.samples_path))
