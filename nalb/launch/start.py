"""Runs a job on loopback, in an emulated network, on hosts or as one node, as the user asked, and restarts it after failures."""

import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nalb.checkpoints import folder, lock
from nalb.errors import InputError, as_text, listed
from nalb.events import LayoutEvent, ReadyEvent
from nalb.launch.encryption import Encryption
from nalb.launch.environments import hosts_lines, local_lines
from nalb.launch.frameworks import MXNET, TORCH
from nalb.launch.hosts import HostsFile, load_hosts
from nalb.launch.network import IN_NAMESPACES, NAMESPACE_PORT, places_in
from nalb.launch.one_node import OneNode
from nalb.launch.ports import free_pair
from nalb.launch.ranks import torch_program
from nalb.launch.restarts import Attempt, RestartPolicy, see_through
from nalb.launch.roles import NOTHING, Program, mxnet_program
from nalb.launch.run_dir import make_run_dir
from nalb.launch.signals import ending_on_signals
from nalb.launch.ssh import unreachable
from nalb.launch.supervisor import print_line, print_unfinished
from nalb.launch.venue import LOOPBACK, JobOrder, RunningJob, Where, hosts_specs
from nalb.options import JobOptions
from nalb.settings import batch_maxima
from netem.emulation import Emulation, attach
from netem.network import Network
from netem.network_file import find_network, load_network
from netem.rootless import ensure_privilege, has_privilege


@dataclass(frozen=True)
class LaunchRequest:
    """The arguments of `nalb launch`; one of local, network, hosts and one_node is given."""

    command: tuple[str, ...]  # the command that each worker runs
    options: JobOptions
    encryption: Encryption
    local: tuple[int, ...] | None  # the number of nodes of each site, on this machine's loopback
    network: str | None  # the name or path of a network file
    hosts: str | None  # the path of a hosts file
    out: str | None  # the run directory; None: a new one under runs/
    max_restarts: int = 0
    min_nodes: int | None = None
    framework: str = MXNET
    one_node: OneNode | None = None  # this machine's part in a job whose other nodes another launcher starts

    @property
    def program(self) -> Program:
        """The processes of the job."""
        return (torch_program if self.framework == TORCH else mxnet_program)(self.command)


def launch(request: LaunchRequest, around: Callable[[Path], AbstractContextManager[object]] = nullcontext) -> Path:
    """Run the job to its end, with the restarts that are allowed; return the run directory of the attempt that ended well.

    around: makes from the new run directory a context that the job runs in.
    Raises InputError or MachineError before the job starts, and JobError for the last failure.
    """
    if request.hosts is None:
        request.program.require()
    hosts = load_hosts(request.hosts) if request.hosts is not None else None
    if request.network is not None:
        ensure_privilege()
    network = load_network(find_network(request.network)) if request.network is not None else None
    where = Where(request.local, network, hosts, request.one_node)
    places = where.nodes()
    policy = RestartPolicy(request.max_restarts, request.min_nodes, None)
    policy.check(len(places))
    one = request.one_node  # whose places are its own alone
    check_workers(request.options, one.nodes if one else sum(place.is_worker for place in places))
    _check_restarts(request, hosts, sum(not place.is_worker for place in places))
    run_dir = make_run_dir(request.out)
    number = secrets.token_hex(4)  # in containers, process ids and names of hosts may be alike
    job = as_text(f"nalb launch (process {os.getpid()} on {socket.gethostname()}, run directory {run_dir}, {number})")
    is_here = hosts is None and request.one_node is None
    if request.one_node is None:  # else each node has a launcher, and they name the job alike
        request = replace(request, options=replace(request.options, checkpoints_job=job))
    is_shared = is_here and request.options.checkpoints is not None
    if is_here:
        checkpoints = request.options.checkpoints or str(run_dir / "checkpoints")
        request = replace(request, options=replace(request.options, checkpoints=checkpoints))
        policy = replace(policy, checkpoints=Path(checkpoints))

    def run(attempt: Attempt) -> None:
        # those left then compute the samples of all
        first_workers = sum(place.is_worker for place in places) if attempt.left_out else None
        order = JobOrder(
            request.program,
            replace(request.options, first_workers=first_workers),
            attempt.run_dir,
            encryption=request.encryption,
            show=print_line,
            show_unfinished=print_unfinished,
            may_miss=True,
        )
        begun_s = time.monotonic()
        with where.venue(request.encryption.is_on, attempt.left_out) as venue:
            job = venue.start(order)
            print_line(f"nalb: started {_counted(job)} on {where.name}; run directory {attempt.run_dir}")
            if request.encryption.is_on and (what := request.program.in_plain):
                print_line(f"nalb: encrypted, except {what}")
            for event in job.follow(None if order.options.is_pure else LayoutEvent):
                if isinstance(event, ReadyEvent):
                    print_line(f"nalb: all have met after {time.monotonic() - begun_s:.1f} s")

    claimed = lock.claim(Path(checkpoints), job) if is_shared else nullcontext()
    with ending_on_signals(), around(run_dir), claimed:
        probe = partial(unreachable, hosts.hosts) if hosts else set[str]
        return see_through(run, run_dir, places, policy, probe, print_line)


def environment_lines(request: LaunchRequest) -> list[str]:
    """The lines that --print-env prints: each process's environment and command. No process is started."""
    encryption = request.encryption
    if encryption.is_on and encryption.keys is None:
        raise InputError(
            "--print-env needs keys that last: `nalb keys --out DIR`, then --keys DIR, the same on each host; or --plain"
        )
    if request.hosts is not None:
        hosts = load_hosts(request.hosts)
        options = replace(request.options, root_port=hosts.root_port)
        specs = hosts_specs(request.program, hosts, hosts.places(), options, encryption.keys)
        return hosts_lines(hosts, specs)
    emulation = None if request.network is None else _emulation_of_lines(load_network(find_network(request.network)))
    if request.one_node is not None:
        specs = request.one_node.specs(request.program, request.options, os.environ, encryption.keys_dir)
        return local_lines(specs, os.environ)
    places = places_in(emulation) if emulation else Where(request.local).loopback_places(encryption.is_on)
    with nullcontext(NAMESPACE_PORT) if emulation else free_pair(LOOPBACK) as port:
        options = replace(request.options, root_port=port)
    variables = IN_NAMESPACES if emulation else NOTHING
    specs = request.program.specs(places, options, os.environ, encryption.keys_dir, variables)
    return local_lines(specs, os.environ, emulation)


def _emulation_of_lines(network: Network) -> Emulation:
    """The network that the lines of --print-env enter. With CPU quotas it must be up, since the lines join its nodes' groups.

    Raises InputError.
    """
    if not network.limits_cpu:
        return Emulation(network)
    if not has_privilege():
        raise InputError(
            f"--print-env: network {network.name} has CPU quotas, which only lines that root prints keep: run `nalb net up`"
            " and then this as root"
        )
    return attach(network)


def _counted(job: RunningJob) -> str:
    """How many processes of each role the job has, in words."""
    roles = Counter(child.spec.role for child in job.processes.children)
    return listed([f"{count} {role}{'' if count == 1 else 's'}" for role, count in roles.items()])


def check_workers(options: JobOptions, workers: int) -> None:
    """Raise InputError for options of batches or tokens that do not fit the number of workers."""
    batch_maxima(options.batch_most, workers, "--batch-most")
    if options.batch_total is not None and options.batch_total < workers:
        raise InputError(f"--batch-total {options.batch_total}: give {workers} workers 1 sample each, or more")
    subset, others = options.token_subset, int(options.token_apart)  # with --apart, one worker beside the subset
    if subset is not None and subset + others > workers:
        raise InputError(f"--subset {subset}: the job has {workers} workers: choose at most {workers - others}")


def _check_restarts(request: LaunchRequest, hosts: HostsFile | None, without_worker: int) -> None:
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
