"""Which processes a job has and what each finds in its environment: the whole contract with any launcher.

Nothing here depends on the machine that a process will run on; here.py adds what does.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from nalb.failures import Cause, Failure, Phase
from nalb.settings import JOINT
from nalb.transport import keys

SCHEDULER_NODE = 0  # the scheduler and coordinator run on the first node
# glibc: memory that was got once is kept. Else MXNet's arrays, freed and got again in every iteration, cost page faults: a fifth of
# a CNN's computing at one size, half as much again in the first iteration at each larger size
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
}
ROLES = ("scheduler", "server", "worker")  # in the order of starting


@dataclass(frozen=True)
class Place:
    """A node of the job."""

    name: str
    address: str  # where the others reach it
    is_worker: bool = True
    is_server: bool = True
    python: str = sys.executable  # the interpreter that has mxnet there
    is_machine: bool = False  # its own: no other node computes there


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start."""

    node: str
    role: str  # one of ROLES
    argv: tuple[str, ...]
    environment: dict[str, str]  # additions that hold on any machine

    @property
    def name(self) -> str:
        """'worker n2': how messages call it."""
        return f"{self.role} {self.node}"

    def failure(self, cause: Cause, detail: str, phase: Phase | None = None) -> Failure:
        """A failure of this process."""
        return Failure(cause=cause, detail=detail, role=self.role, node=self.node, phase=phase)

    @property
    def slug(self) -> str:
        """'n2.worker': log file names."""
        return f"{self.node}.{self.role}"


@dataclass(frozen=True)
class JobOptions:
    """What all processes of a job share."""

    root_port: int
    scheme: str = "auto"
    estimator: str = "capacity"
    alpha_bytes: float | None = None
    transport: str = "mxnet"
    deadline_s: float | None = None
    observers: str | None = None  # ipc:// address; None with scheme stock or p3: MXNet alone, no control plane
    hold: bool = False
    samples_path: str | None = None
    keys_dir: str | None = None  # with one key file for each node, on the machine of the processes
    batching: str | None = None  # a name of control.settings.BATCHINGS; None: sizes are the script's
    batch_total: int | None = None
    batch_most: str | None = None  # one number, or one for each worker
    predictor: str | None = None  # a name of control.settings.PREDICTORS
    predictor_models: str | None = None  # a folder on the coordinator's machine
    checkpoints: str | None = None  # a folder on the machine of each process
    first_workers: int | None = None  # that the job began with; None: as many as it has
    verify_sums: bool = False
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def sizes_batches(self) -> bool:
        """Whether the coordinator chooses batch sizes, or watches them."""
        return self.batching is not None or self.scheme == JOINT

    @property
    def is_pure(self) -> bool:
        """Whether MXNet runs alone, without shim and plans; and without a coordinator, unless batch sizes are chosen."""
        return self.scheme in ("stock", "p3") and self.observers is None


def process_specs(
    places: list[Place], command: list[str], options: JobOptions, inherited: Mapping[str, str]
) -> list[ProcessSpec]:
    """The scheduler, then servers, then workers, each with its argv and environment."""
    shared = _shared_environment(places, options)
    one_thread = {"OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS", "1")}
    specs = []
    for index, place in enumerate(places):
        here = {**shared, "DMLC_NODE_HOST": place.address, "NALB_NODE": place.name}
        if options.keys_dir is not None:
            here[keys.VARIABLE] = str(keys.key_path(options.keys_dir, place.name))
        narrow = one_thread | here
        own = (place.python, "-m", "kvstore_patch.roles.stock" if options.is_pure else "kvstore_patch.roles.planned")
        if index == SCHEDULER_NODE:
            scheduler = (place.python, "-m", "kvstore_patch.roles.planned") if options.batching else own
            specs.append(ProcessSpec(place.name, "scheduler", scheduler, narrow | _coordinator_environment(options)))
        if place.is_server:
            specs.append(ProcessSpec(place.name, "server", own, narrow | {"DMLC_ROLE": "server"}))
        if place.is_worker:
            worker = {"DMLC_ROLE": "worker"}
            if options.sizes_batches:
                worker |= {name: inherited.get(name, value) for name, value in KEEP_MEMORY.items()}
            specs.append(
                ProcessSpec(place.name, "worker", tuple(command), (here if place.is_machine else narrow) | worker)
            )
    return sorted(specs, key=lambda spec: ROLES.index(spec.role))


def _shared_environment(places: list[Place], options: JobOptions) -> dict[str, str]:
    root = places[SCHEDULER_NODE]
    shared = {
        "DMLC_PS_ROOT_URI": root.address,
        "DMLC_PS_ROOT_PORT": str(options.root_port),
        "DMLC_NUM_WORKER": str(sum(p.is_worker for p in places)),
        "DMLC_NUM_SERVER": str(sum(p.is_server for p in places)),
        "NALB_COORDINATOR": f"{root.address}:{options.root_port + 1}",
        "NALB_ADDRESSES": ",".join(dict.fromkeys(place.address for place in places)),
        "NALB_SCHEME": options.scheme,
        "NALB_ESTIMATOR": options.estimator,
        "PYTHONUNBUFFERED": "1",
    }
    if options.is_pure:
        shared["NALB_STOCK"] = "1"
    else:
        shared["NALB_SHIM_TRANSPORT"] = options.transport
    if options.scheme == "p3":
        shared["DMLC_PS_SHIM_TYPE"] = "p3"
    if options.alpha_bytes is not None:
        shared["NALB_ALPHA_BYTES"] = repr(options.alpha_bytes)
    if options.deadline_s is not None:
        shared["NALB_DEADLINE_S"] = repr(options.deadline_s)
    if options.verify_sums:
        shared["NALB_VERIFY_SUMS"] = "1"
    if options.batching is not None:
        shared["NALB_BATCHING"] = options.batching
    if options.batch_total is not None:
        shared["NALB_BATCH_TOTAL"] = str(options.batch_total)
    if options.batch_most is not None:
        shared["NALB_BATCH_MOST"] = options.batch_most
    if options.predictor is not None:
        shared["NALB_PREDICTOR"] = options.predictor
    if options.checkpoints is not None:
        shared["NALB_CHECKPOINTS"] = options.checkpoints
    if options.first_workers is not None:
        shared["NALB_FIRST_WORKERS"] = str(options.first_workers)
    return shared | dict(options.extra)


def _coordinator_environment(options: JobOptions) -> dict[str, str]:
    environment = {"DMLC_ROLE": "scheduler", "NALB_HOLD": "1" if options.hold else "0"}
    if options.observers:
        environment["NALB_OBSERVERS"] = options.observers
    if options.samples_path:
        environment["NALB_SAMPLES"] = options.samples_path
    if options.predictor_models is not None:
        environment["NALB_PREDICTOR_MODELS"] = options.predictor_models
    return environment
