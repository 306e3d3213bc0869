"""The processes of an MXNet job and the environment of each: the whole contract with any launcher.

Nothing in this module depends on the machine that a process runs on; machine_env.py adds the paths that do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from nalb.errors import InputError, listed
from nalb.extras import require_mxnet
from nalb.failures import Cause, Failure, Phase
from nalb.options import JobOptions, variables_of
from nalb.planning.sites import Sites
from nalb.process.own_program import own_argv
from nalb.schemes import by_name
from nalb.transport import keys

SCHEDULER_NODE = 0  # the scheduler and coordinator run on the first node
# These settings make glibc keep memory that it has got once. Without them MXNet's arrays, which each iteration frees and gets
# again, cost page faults: a fifth of a CNN's computing time at one batch size, and half as much again in the first iteration at
# each larger batch size. With PyTorch every third iteration takes 14 % longer without them.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
}
NOTHING: Mapping[str, str] = MappingProxyType({})
WORKER = "worker"
ROLES = ("scheduler", "server", "global server", "site server", WORKER)  # in the order in which they start


@dataclass(frozen=True)
class Place:
    """A node of the job and where it runs."""

    name: str
    address: str  # the other nodes reach it here
    is_worker: bool = True
    is_server: bool = True
    python: str | None = None  # the node's interpreter with nalb; None: this one
    is_machine: bool = False  # whether the node has a machine of its own, on which no other node computes
    site: str | None = None  # the site whose uplink the node shares; None: it shares no uplink


@dataclass(frozen=True)
class ProcessSpec:
    """A process of the job, as it is to be started."""

    node: str
    role: str  # one of ROLES
    argv: tuple[str, ...]
    environment: dict[str, str]  # variables to add, the same on any machine
    is_coordinator: bool = False  # whether the coordinator runs in this process

    @property
    def name(self) -> str:
        """The process's name in messages, such as 'worker n2'."""
        return f"{self.role} {self.node}"

    def failure(self, cause: Cause, detail: str, phase: Phase | None = None) -> Failure:
        """Make a Failure of this process from its cause, a text for people and the phase."""
        return Failure(cause=cause, detail=detail, role=self.role, node=self.node, phase=phase)

    @property
    def slug(self) -> str:
        """The process's name in file names, such as 'n2.worker'."""
        return f"{self.node}.{self.role.replace(' ', '-')}"


# (places, options, inherited, keys_dir, extra) -> processes; the arguments are those of process_specs
Specs = Callable[[Sequence[Place], JobOptions, Mapping[str, str], str | None, Mapping[str, str]], list[ProcessSpec]]


@dataclass(frozen=True)
class Program:
    """What a job runs. A venue knows nothing else of the kind of the job."""

    specs: (
        Specs  # workers have the role worker; the coordinator's process serves observers at the address of the options
    )
    require: Callable[[], None]  # raises MachineError where this machine lacks what its processes need
    is_joined: Callable[[JobOptions], bool]  # whether every process has to join the coordinator, where the job has one
    joining: str = ""  # what the command must do to join, for people
    in_plain: str = ""  # what also an encrypted job sends in plain text, for people


def mxnet_program(command: Sequence[str]) -> Program:
    """An MXNet job: scheduler, servers, and workers that run the command. MXNet alone joins no coordinator."""
    return Program(
        lambda places, *more: process_specs(places, command, *more),
        partial(require_mxnet, "a job"),
        lambda options: not options.is_pure,
        "create a KVStore ('nalb')",
    )


def process_specs(
    places: Sequence[Place],
    command: Sequence[str],
    options: JobOptions,
    inherited: Mapping[str, str],
    keys_dir: str | None = None,
    extra: Mapping[str, str] = NOTHING,
) -> list[ProcessSpec]:
    """The job's processes, each with its argv and environment: the scheduler, then the servers, then the workers.

    keys_dir: a directory with one key file for each node, on the machines of the processes. extra: variables for all processes.
    """
    alone = options.is_pure
    has_coordinator = not alone or options.batching is not None
    options = replace(
        options,
        is_stock=alone,
        transport=None if alone else options.transport or "mxnet",
        observers=options.observers if has_coordinator else None,
    )
    sites = sites_of(places, options)
    options = replace(options, sites=sites_told(places, sites))
    servers = {place.name: _server_roles(place, index, sites) for index, place in enumerate(places)}
    shared = _shared_environment(places, options, sum(map(len, servers.values()))) | dict(extra)
    one_thread = {"OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS", "1")}
    of_coordinator = {"DMLC_ROLE": "scheduler"} | variables_of(options, coordinators=True)
    specs = []
    for index, place in enumerate(places):
        here = {**shared, "DMLC_NODE_HOST": place.address, **named(place, keys_dir)}
        narrow = one_thread | here
        planned, stock = (
            tuple(own_argv(f"kvstore_patch.roles.{name}", python=place.python)) for name in ("planned", "stock")
        )
        own = stock if alone else planned
        if index == SCHEDULER_NODE:
            scheduler = planned if has_coordinator else stock
            specs.append(ProcessSpec(place.name, "scheduler", scheduler, narrow | of_coordinator, has_coordinator))
        for role in servers[place.name]:
            level = {} if role == "server" else {"NALB_LEVEL": role.split()[0]}
            specs.append(ProcessSpec(place.name, role, own, narrow | {"DMLC_ROLE": "server"} | level))
        if place.is_worker:
            worker = {"DMLC_ROLE": "worker"}
            if options.sizes_batches or options.parallel:
                worker |= kept_memory(inherited)
            specs.append(
                ProcessSpec(place.name, "worker", tuple(command), (here if place.is_machine else narrow) | worker)
            )
    return sorted(specs, key=lambda spec: ROLES.index(spec.role))


def named(place: Place, keys_dir: str | None) -> dict[str, str]:
    """The variables that tell a process its node, and where the node's keys are; keys_dir: None in a job without keys."""
    told = {"NALB_NODE": place.name}
    return told if keys_dir is None else told | {keys.VARIABLE: str(keys.key_path(keys_dir, place.name))}


def kept_memory(inherited: Mapping[str, str]) -> dict[str, str]:
    """KEEP_MEMORY, where the user's environment does not say otherwise."""
    return {name: inherited.get(name, value) for name, value in KEEP_MEMORY.items()}


def sites_of(places: Sequence[Place], options: JobOptions) -> Sites | None:
    """The sites within which a job sums gradients first; None where sums have one level.

    A node that names no site is a site of its own. Raises InputError for sites that cannot sum.
    """
    sites = Sites(tuple(place.site or place.name for place in places))
    if options.one_level or not sites.has_levels or not by_name(options.scheme).sums_by_sites:
        return None
    if others := [place.name for place in places if not (place.is_worker and place.is_server)]:
        raise InputError(
            f"{listed(others)}: sums by sites need a worker and a server on each node: give it both, or add --one-level"
        )
    if unclear := {place.name for place in places if place.site is None} & {place.site for place in places}:
        raise InputError(f"{listed(sorted(unclear))}: a site is called like a node that names no site: rename one")
    return sites


def sites_told(places: Sequence[Place], sites: Sites | None) -> str | None:
    """The text of NALB_SITES; None where sums have one level."""
    if sites is None:
        return None
    return ",".join(f"{place.name}={site}" for place, site in zip(places, sites.name_of_node, strict=True))


def _server_roles(place: Place, index: int, sites: Sites | None) -> list[str]:
    if sites is None:
        return ["server"] * place.is_server
    is_alone = len(sites.members[sites.of_node[index]]) == 1
    return ["global server"] if is_alone else ["global server", "site server"]


def _shared_environment(places: Sequence[Place], options: JobOptions, num_servers: int) -> dict[str, str]:
    root = places[SCHEDULER_NODE]
    shared = {
        "DMLC_PS_ROOT_URI": root.address,
        "DMLC_PS_ROOT_PORT": str(options.root_port),
        "DMLC_NUM_WORKER": str(sum(p.is_worker for p in places)),
        "DMLC_NUM_SERVER": str(num_servers),
        "NALB_COORDINATOR": f"{root.address}:{options.root_port + 1}",
        "NALB_ADDRESSES": ",".join(dict.fromkeys(place.address for place in places)),
        "PYTHONUNBUFFERED": "1",
    }
    if kind := by_name(options.scheme).ps_lite_kind:
        shared["DMLC_PS_VAN_TYPE"] = kind
    return shared | variables_of(options, coordinators=False)
