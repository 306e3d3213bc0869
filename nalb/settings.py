"""What a process of a job reads from its environment; `nalb launch --print-env` shows all of it.

Besides ps-lite's own DMLC_* variables:

    NALB_NODE            this node's name, of at most 128 bytes (default: the host's name)
    NALB_COORDINATOR     host:port of the coordinator (default: DMLC_PS_ROOT_URI and the port after DMLC_PS_ROOT_PORT)
    NALB_ADDRESSES       the nodes' IP addresses, separated by commas: only connections to these are watched (default: all are)
    NALB_SCHEME          distribution scheme (default: auto)
    NALB_ESTIMATOR       capacity | paper (default: capacity)
    NALB_ALPHA_BYTES     alpha of x = sqrt(M alpha / N), for the whole job; default: it follows how fast links drain
    NALB_INFLIGHT_BYTES    how much of a worker's gradients is under way at a time; 0: all; default: M / 8, at least 2 MB
    NALB_HEARTBEAT_S     between signs of life (default: 0.25), at most a quarter of the silence that is allowed
    NALB_STARTUP_S       until all processes must have come (default: 120)
    NALB_DEADLINE_S      from a fault that does not heal to the end of everyone else (default: 10); 0.6 of it is silence
    NALB_BATCHING        how batch sizes are chosen (default: nobody chooses; they stay as the script has them)
    NALB_BATCH_TOTAL     samples of one iteration over all workers (default: what the workers begin with)
    NALB_BATCH_MOST      the most samples of a worker: one number for all, or one each, by rank, separated by commas
    NALB_PREDICTOR       how lb-bsp foresees speeds (default: memoryless, the last speed again)
    NALB_PREDICTOR_MODELS  folder from which networks that predict begin, and where they are stored at the end
    NALB_FIRST_WORKERS   how many workers the job began with, where it goes on with fewer: the global batch stays
    NALB_CHECKPOINTS     folder for checkpoints (kvstore_patch/checkpoints.py); nalb launch also reads it
    NALB_VERIFY_SUMS     1: the sum of every slice is checked against an independent one (nalb/protocol/sums.py)
    NALB_STOCK           1: MXNet runs alone; the coordinator, if any, sizes batches and plans nothing
    NALB_OBSERVERS       an ipc:// address where the coordinator also listens, for launcher and compare
    NALB_HOLD            1: iterate only as observers ask (compare)
    NALB_SAMPLES         file for one JSON line per event (the run's samples.jsonl)
    NALB_KEYS            this node's key file (nalb/transport/keys.py): everything is encrypted; default: nothing is
"""

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from nalb.batching.schemes import BASELINES, DEFAULT_PREDICTOR
from nalb.batching.schemes import SCHEMES as BATCH_SCHEMES
from nalb.errors import InputError, listed

NODE_MOST = 128  # bytes of a node's name
BATCH_MOST = 1 << 31  # samples
DEADLINE_S = 10.0  # from a fault to the end of everyone else
HEARTBEAT_S = 0.25
HEARTBEATS = 4  # at least, within the silence that is allowed: one may come late
SILENCE = 0.6  # of the deadline: how long a process may be silent; the rest is for telling everyone, and for their ends
JOINT = "joint"  # distribution and batching from one plan
SCHEMES = ("auto", "stock", "p3", "average", "elastic", "aware", "exact", "oracle", JOINT)
BATCHINGS = (*(name for name in BATCH_SCHEMES if name != JOINT), *BASELINES)
NETWORK_PREDICTORS = ("rnn", "lstm", "narx")  # live beside Gluon
PREDICTORS = ("memoryless", "ema", "arima", *NETWORK_PREDICTORS)
ESTIMATOR_NAMES = ("capacity", "paper")


@dataclass(frozen=True)
class Settings:
    """One process's view of the job."""

    role: str
    node: str
    endpoint: str  # tcp://host:port of the coordinator
    num_workers: int
    num_servers: int
    scheme: str
    estimator: str
    alpha_bytes: float | None  # None: as measured
    inflight_bytes: int | None
    heartbeat_s: float
    deadline_s: float
    startup_s: float
    observers: str | None
    hold: bool
    samples_path: str | None
    keys_path: str | None = None
    is_stock: bool = False  # MXNet alone: no plans, no control plane in servers
    verify_sums: bool = False
    starts_together: bool = False  # nalb launch starts all processes at once; other launchers may take minutes
    batching: str | None = None
    batch_total: int | None = None
    batch_most: tuple[int, ...] | None = None  # by worker rank
    predictor: str = DEFAULT_PREDICTOR
    predictor_models: str | None = None  # a folder on the coordinator's machine
    first_workers: int = 0  # that the job began with; 0: as many as it has
    addresses: frozenset[str] | None = None  # of the job's nodes; None: not known

    @property
    def silence_s(self) -> float:
        """How long nothing may be heard of a process, or of the coordinator."""
        return SILENCE * self.deadline_s


def from_environment(environ: Mapping[str, str], hostname: str) -> Settings:
    """Read and check; InputError names the variable."""

    def text(name: str, default: str | None = None) -> str:
        value = environ.get(name) or default
        if value is None:
            raise InputError(
                f"environment variable {name} is not set: start this process by `nalb launch`, or see --print-env"
            )
        return value

    def number(name: str, default: float | None, low: float, high: float) -> float:
        word = text(name, None if default is None else str(default))
        try:
            value = float(word)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise InputError(f"environment variable {name}={word!r} is not a number in [{low:g}, {high:g}]")
        return value

    def choice(name: str, default: str, known: tuple[str, ...]) -> str:
        value = text(name, default)
        if value not in known:
            raise InputError(f"environment variable {name}={value!r} is not one of {', '.join(known)}")
        return value

    def whole(name: str) -> int | None:
        return int(number(name, None, 1, BATCH_MOST)) if environ.get(name) else None

    node = text("NALB_NODE", hostname)
    if not node.isprintable() or not 1 <= len(node.encode()) <= NODE_MOST:
        raise InputError(f"environment variable NALB_NODE={node!r}: give a printable name of 1 to {NODE_MOST} bytes")
    scheme = choice("NALB_SCHEME", "auto", SCHEMES)
    batching = choice("NALB_BATCHING", "", BATCHINGS) if environ.get("NALB_BATCHING") else None
    if scheme == JOINT:
        if batching is not None:
            raise InputError(f"environment variable NALB_BATCHING={batching}: scheme joint sizes the batches: unset it")
        batching = JOINT
    deadline_s = number("NALB_DEADLINE_S", DEADLINE_S, 0.1, 86400)
    slowest_s = SILENCE * deadline_s / HEARTBEATS
    heartbeat_s = number("NALB_HEARTBEAT_S", min(HEARTBEAT_S, slowest_s), 0.01, 60)
    if heartbeat_s > slowest_s:
        raise InputError(
            f"environment variable NALB_HEARTBEAT_S={heartbeat_s:g}: a deadline of {deadline_s:g} s needs a sign of life every "
            f"{slowest_s:g} s: choose that or less, or a longer NALB_DEADLINE_S"
        )
    num_workers = int(number("DMLC_NUM_WORKER", None, 1, 100_000))
    root_port = int(number("DMLC_PS_ROOT_PORT", None, 1, 65534))
    coordinator = text("NALB_COORDINATOR", f"{text('DMLC_PS_ROOT_URI')}:{root_port + 1}")
    return Settings(
        role=choice("DMLC_ROLE", "worker", ("worker", "server", "scheduler")),
        node=node,
        endpoint=f"tcp://{coordinator}",
        num_workers=num_workers,
        num_servers=int(number("DMLC_NUM_SERVER", None, 1, 100_000)),
        scheme=scheme,
        estimator=choice("NALB_ESTIMATOR", "capacity", ESTIMATOR_NAMES),
        alpha_bytes=number("NALB_ALPHA_BYTES", None, 1e-3, 1e12) if environ.get("NALB_ALPHA_BYTES") else None,
        inflight_bytes=int(number("NALB_INFLIGHT_BYTES", 0, 0, 1e12)) if environ.get("NALB_INFLIGHT_BYTES") else None,
        heartbeat_s=heartbeat_s,
        deadline_s=deadline_s,
        startup_s=number("NALB_STARTUP_S", 120, 1, 86400),
        observers=environ.get("NALB_OBSERVERS") or None,
        hold=environ.get("NALB_HOLD") == "1",
        samples_path=environ.get("NALB_SAMPLES") or None,
        keys_path=environ.get("NALB_KEYS"),
        is_stock=environ.get("NALB_STOCK") == "1",
        starts_together="NALB_JOB" in environ,  # nalb launch's mark
        batching=batching,
        verify_sums=environ.get("NALB_VERIFY_SUMS") == "1",
        batch_total=whole("NALB_BATCH_TOTAL"),
        first_workers=whole("NALB_FIRST_WORKERS") or 0,
        batch_most=batch_maxima(
            environ.get("NALB_BATCH_MOST") or None, num_workers, "environment variable NALB_BATCH_MOST"
        ),
        predictor=choice("NALB_PREDICTOR", DEFAULT_PREDICTOR, PREDICTORS),
        predictor_models=environ.get("NALB_PREDICTOR_MODELS") or None,
        addresses=_addresses(environ.get("NALB_ADDRESSES") or None),
    )


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
