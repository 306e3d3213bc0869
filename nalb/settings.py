"""What a job is asked to be: one record from the command line to every process.

`JobOptions` declares each option once: its name, its environment variable, what the variable may say, and what it means. `nalb
launch` writes the variables from it (`variables_of`), and every process reads them into it again (`from_environment`): so another
launcher may set them too, and `nalb launch --print-env` shows all. ps-lite's own DMLC_* variables stand beside them.

A field that is None or False was not asked for. `Settings` is the same record in one process, with the defaults filled in.
"""

import ipaddress
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from nalb.batching.schemes import BASELINES
from nalb.batching.schemes import SCHEMES as BATCH_SCHEMES
from nalb.errors import InputError, listed
from nalb.extensions import ESTIMATOR_GROUP, SCHEME_GROUP, is_own
from nalb.measurement.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from nalb.schemes import AUTO, JOINT, SCHEMES, by_name

NODE_MOST = 128  # bytes of a node's name
BATCH_MOST = 1 << 31  # samples
WORKERS_MOST = 100_000
DEADLINE_S = 10.0  # from a fault to the end of everyone else
STARTUP_S = 120.0
HEARTBEAT_S = 0.25
HEARTBEATS = 4  # at least, within the silence that is allowed: one may come late
SILENCE = 0.6  # of the deadline: how long a process may be silent; the rest is for telling everyone, and for their ends
JOINT_BATCHING = JOINT.name  # the batch scheme that belongs to the distribution scheme of that name
BATCHINGS = (*(name for name in BATCH_SCHEMES if name != JOINT_BATCHING), *BASELINES)
NETWORK_PREDICTORS = ("rnn", "lstm", "narx")  # live beside Gluon
PREDICTORS = ("memoryless", "ema", "arima", *NETWORK_PREDICTORS)
DEFAULT_PREDICTOR = "narx"  # Chen et al.'s choice
NETWORKS_MOST = 16  # workers up to which it is the default: a network costs some 2 ms an iteration and worker


@dataclass(frozen=True)
class Variable:
    """An option's place in the environment."""

    name: str
    read: Callable[[str, str], Any]  # from the variable's name and its text; InputError for what it may not say
    is_coordinators: bool = False  # of no use to other processes
    is_always_told: bool = False  # also where it was not asked for: what the launcher itself inherited must not count


def _text(name: str, text: str) -> str:
    del name
    return text


def _is_one(name: str, text: str) -> bool:
    del name
    return text == "1"


def _number(low: float, high: float) -> Callable[[str, str], float]:
    def read(name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise InputError(f"environment variable {name}={text!r} is not a number in [{low:g}, {high:g}]")
        return value

    return read


def _whole(low: float, high: float) -> Callable[[str, str], int]:
    read = _number(low, high)
    return lambda name, text: int(read(name, text))


def _choice(*known: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in known:
            raise InputError(f"environment variable {name}={text!r} is not one of {', '.join(known)}")
        return text

    return read


def _one_of(known: Mapping[str, object], group: str) -> Callable[[str, str], str]:
    """A name of nalb's own, or the word for a user's own, which only the coordinator loads."""
    choice = _choice(*known)
    return lambda name, text: text if is_own(text, group) else choice(name, text)


def _option(default: Any, name: str, read: Callable[[str, str], Any], **more: bool) -> Any:
    """A field of JobOptions with its variable."""
    return field(default=default, metadata={"variable": Variable(name, read, **more)})


@dataclass(frozen=True)
class JobOptions:
    """What all processes of a job share, as it was asked for."""

    root_port: int = 0  # DMLC_PS_ROOT_PORT; the coordinator listens on the next one; 0: not chosen yet
    # The distribution scheme.
    scheme: str = _option(AUTO, "NALB_SCHEME", _one_of(SCHEMES, SCHEME_GROUP))
    # Schemes of a user's own that observers may ask a held job for, with commas: the coordinator loads them at its start.
    own_schemes: str | None = _option(None, "NALB_OWN_SCHEMES", _text, is_coordinators=True)
    # What turns samples into capacities.
    estimator: str = _option(DEFAULT_ESTIMATOR, "NALB_ESTIMATOR", _one_of(ESTIMATORS, ESTIMATOR_GROUP))
    # alpha of x = sqrt(M alpha / N), for the whole job; default: it follows how fast links drain.
    alpha_bytes: float | None = _option(None, "NALB_ALPHA_BYTES", _number(1e-3, 1e12))
    # How much of a worker's gradients is under way at a time; 0: all; default: M / 8, at least 2 MB.
    inflight_bytes: int | None = _option(None, "NALB_INFLIGHT_BYTES", _whole(0, 1e12))
    # Between signs of life; default: 0.25, at most a quarter of the silence that is allowed.
    heartbeat_s: float | None = _option(None, "NALB_HEARTBEAT_S", _number(0.01, 60))
    # Until all processes must have come; default: 120.
    startup_s: float | None = _option(None, "NALB_STARTUP_S", _number(1, 86400))
    # From a fault that does not heal to the end of everyone else; default: 10. 0.6 of it is silence.
    deadline_s: float | None = _option(None, "NALB_DEADLINE_S", _number(0.1, 86400))
    # How batch sizes are chosen; default: nobody chooses, they stay as the script has them.
    batching: str | None = _option(None, "NALB_BATCHING", _choice(*BATCHINGS))
    # Samples of one iteration over all workers; default: what the workers begin with.
    batch_total: int | None = _option(None, "NALB_BATCH_TOTAL", _whole(1, BATCH_MOST))
    # The most samples of a worker: one number for all, or one each, by rank, separated by commas.
    batch_most: str | None = _option(None, "NALB_BATCH_MOST", _text)
    # How lb-bsp foresees speeds; default: narx, which is EMA for the first 500 iterations; of more than 16 workers, ema.
    predictor: str | None = _option(None, "NALB_PREDICTOR", _choice(*PREDICTORS))
    # Folder on the coordinator's machine from which networks that predict begin, and where they are stored at the end.
    predictor_models: str | None = _option(None, "NALB_PREDICTOR_MODELS", _text, is_coordinators=True)
    # How many workers the job began with, where it goes on with fewer: the global batch stays.
    first_workers: int | None = _option(None, "NALB_FIRST_WORKERS", _whole(1, BATCH_MOST))
    # Folder for checkpoints on the machine of each process (kvstore_patch/checkpoints.py).
    checkpoints: str | None = _option(None, "NALB_CHECKPOINTS", _text)
    # The sum of every slice is checked against an independent one (nalb/protocol/sums.py).
    verify_sums: bool = _option(False, "NALB_VERIFY_SUMS", _is_one)
    # MXNet runs alone; the coordinator, if any, sizes batches and plans nothing.
    is_stock: bool = _option(False, "NALB_STOCK", _is_one)
    # libzmq under ps-lite: mxnet or pyzmq; default: mxnet, encrypted pyzmq (kvstore_patch/shim).
    transport: str | None = _option(None, "NALB_SHIM_TRANSPORT", _text)
    # An ipc:// address where the coordinator also listens, for launcher and compare.
    observers: str | None = _option(None, "NALB_OBSERVERS", _text, is_coordinators=True)
    # Iterate only as observers ask (compare).
    hold: bool = _option(False, "NALB_HOLD", _is_one, is_coordinators=True, is_always_told=True)
    # File for one JSON line per event (the run's samples.jsonl).
    samples_path: str | None = _option(None, "NALB_SAMPLES", _text, is_coordinators=True)

    @property
    def sizes_batches(self) -> bool:
        """Whether the coordinator chooses batch sizes, or watches them."""
        return self.batching is not None or by_name(self.scheme).sizes_batches

    @property
    def is_pure(self) -> bool:
        """Whether MXNet runs alone, without shim and plans; and without a coordinator, unless batch sizes are chosen."""
        return by_name(self.scheme).routes_itself and self.observers is None


DECLARED: dict[str, Variable] = {
    one.name: one.metadata["variable"] for one in fields(JobOptions) if "variable" in one.metadata
}


@dataclass(frozen=True, kw_only=True)
class Settings(JobOptions):
    """One process's view of the job: what was asked for with its defaults, and who the process is."""

    role: str  # DMLC_ROLE
    node: str  # NALB_NODE: this node's name, of at most 128 bytes; default: the host's name
    endpoint: str  # tcp://host:port of the coordinator: NALB_COORDINATOR; default: DMLC_PS_ROOT_URI and the port after the root's
    num_workers: int  # DMLC_NUM_WORKER
    num_servers: int  # DMLC_NUM_SERVER
    heartbeat_s: float = HEARTBEAT_S
    startup_s: float = STARTUP_S
    deadline_s: float = DEADLINE_S
    predictor: str = DEFAULT_PREDICTOR
    keys_path: str | None = (
        None  # NALB_KEYS: this node's key file (nalb/transport/keys.py): all is encrypted; default: nothing is
    )
    starts_together: bool = False  # nalb launch starts all processes at once; other launchers may take minutes
    # NALB_ADDRESSES: the nodes' IP addresses, with commas: only connections to these are watched; None: all are.
    addresses: frozenset[str] | None = None

    @property
    def silence_s(self) -> float:
        """How long nothing may be heard of a process, or of the coordinator."""
        return SILENCE * self.deadline_s

    @property
    def batch_maxima(self) -> tuple[int, ...] | None:
        """The most samples of each worker, by rank. Raises InputError."""
        return batch_maxima(self.batch_most, self.num_workers, "environment variable NALB_BATCH_MOST")


def variables_of(options: JobOptions, coordinators: bool) -> dict[str, str]:
    """The variables that say these options: those of the coordinator alone, or those of every process."""
    told = {}
    for name, variable in DECLARED.items():
        value = getattr(options, name)
        if variable.is_coordinators != coordinators or (
            (value is None or value is False) and not variable.is_always_told
        ):
            continue
        told[variable.name] = str(int(value)) if isinstance(value, bool) else str(value)
    return told


def options_in(environ: Mapping[str, str]) -> dict[str, Any]:
    """The declared options that an environment says, by field. InputError names the variable."""
    return {
        name: variable.read(variable.name, environ[variable.name])
        for name, variable in DECLARED.items()
        if environ.get(variable.name)
    }


def from_environment(environ: Mapping[str, str], hostname: str) -> Settings:
    """Read and check; InputError names the variable."""

    def text(name: str, default: str | None = None) -> str:
        value = environ.get(name) or default
        if value is None:
            raise InputError(
                f"environment variable {name} is not set: start this process by `nalb launch`, or see --print-env"
            )
        return value

    node = text("NALB_NODE", hostname)
    if not node.isprintable() or not 1 <= len(node.encode()) <= NODE_MOST:
        raise InputError(f"environment variable NALB_NODE={node!r}: give a printable name of 1 to {NODE_MOST} bytes")
    said = options_in(environ)
    role = _choice("worker", "server", "scheduler")("DMLC_ROLE", text("DMLC_ROLE", "worker"))
    num_workers, num_servers, root_port = (
        _whole(1, most)(name, text(name))
        for name, most in (
            ("DMLC_NUM_WORKER", WORKERS_MOST),
            ("DMLC_NUM_SERVER", WORKERS_MOST),
            ("DMLC_PS_ROOT_PORT", 65534),
        )
    )
    coordinator = text("NALB_COORDINATOR", f"{text('DMLC_PS_ROOT_URI')}:{root_port + 1}")
    said.setdefault("predictor", DEFAULT_PREDICTOR if num_workers <= NETWORKS_MOST else "ema")
    slowest_s = SILENCE * said.get("deadline_s", DEADLINE_S) / HEARTBEATS
    settings = Settings(
        root_port=root_port,
        role=role,
        node=node,
        endpoint=f"tcp://{coordinator}",
        num_workers=num_workers,
        num_servers=num_servers,
        keys_path=environ.get("NALB_KEYS"),
        starts_together="NALB_JOB" in environ,  # nalb launch's mark
        addresses=_addresses(environ.get("NALB_ADDRESSES") or None),
        **({"heartbeat_s": min(HEARTBEAT_S, slowest_s)} | said),
    )
    if settings.heartbeat_s > slowest_s:
        raise InputError(
            f"environment variable NALB_HEARTBEAT_S={settings.heartbeat_s:g}: a deadline of {settings.deadline_s:g} s needs a "
            f"sign of life every {slowest_s:g} s: choose that or less, or a longer NALB_DEADLINE_S"
        )
    _ = settings.batch_maxima  # said here, if it cannot be
    if not by_name(settings.scheme).sizes_batches:
        return settings
    if settings.batching is not None:
        raise InputError(
            f"environment variable NALB_BATCHING={settings.batching}: scheme {settings.scheme} sizes the batches: unset it"
        )
    return replace(settings, batching=JOINT_BATCHING)


def _addresses(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    try:
        return frozenset(str(ipaddress.ip_address(word.strip())) for word in text.split(","))
    except ValueError as error:
        raise InputError(
            f"environment variable NALB_ADDRESSES: {error}: give the nodes' IP addresses with commas, or unset it"
        ) from None


def silence_of(environ: Mapping[str, str]) -> float:
    """silence_s of a process with this environment, for those who watch it; what is no number, the process itself refuses."""
    with suppress(ValueError):
        return SILENCE * float(environ.get("NALB_DEADLINE_S") or DEADLINE_S)
    return SILENCE * DEADLINE_S


def batch_maxima(text: str | None, workers: int, where: str) -> tuple[int, ...] | None:
    """The most samples of each worker, from one number for all or one each; InputError names `where`."""
    if text is None:
        return None
    words = text.split(",")
    wrong = [word for word in words if not (word.strip().isdecimal() and 1 <= int(word) <= BATCH_MOST)]
    if wrong or len(words) not in (1, workers):
        raise InputError(
            f"{where}={listed(wrong or words)!r}: give one number of samples for all workers, or {workers} with commas"
        )
    maxima = tuple(int(word) for word in words)
    return maxima * workers if len(maxima) == 1 else maxima
