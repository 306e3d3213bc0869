"""One process's view of the job: the options that were asked for (nalb/options.py), the defaults, and who the process is."""

import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nalb.batching.schemes import BASELINES, DEFAULT_PREDICTOR, FEDERATED
from nalb.errors import InputError, listed
from nalb.options import (
    BATCH_MOST,
    DECLARED,
    DEFAULT_PRECISION,
    JOINT_BATCHING,
    Choice,
    JobOptions,
    Number,
    options_in,
    read_sites,
)
from nalb.planning.sites import Sites
from nalb.schemes import GLOO, STOCK, by_name
from nalb.tokens.shape import read_weights

NODE_MOST = 128  # most bytes of a node's name
WORKERS_MOST = 100_000
DEADLINE_S = 10.0  # from a fault to the end of all other processes
STARTUP_S = 120.0
HEARTBEAT_S = 0.25
HEARTBEATS = 4  # least number within the silence that is allowed, so that one may come late
OF_MXNET = (  # options that jobs of agents refuse; others that are MXNet's alone change nothing there
    "is_stock", "parallel", "token_weights", "token_subset", "token_apart", "staleness", "stragglers", "predictor_models",
)  # fmt: skip
SILENCE = 0.6  # part of the deadline for which a process may be silent; in the rest all others are told, and end


@dataclass(frozen=True, kw_only=True)
class Settings(JobOptions):
    """One process's view of the job: the options with their defaults, and who the process is."""

    role: str  # DMLC_ROLE
    node: str  # NALB_NODE: this node's name, of at most 128 bytes; default: the host's name
    endpoint: str  # tcp://host:port of the coordinator: NALB_COORDINATOR; default: DMLC_PS_ROOT_URI and the port after the root's
    num_workers: int  # DMLC_NUM_WORKER
    num_servers: int  # DMLC_NUM_SERVER
    level: str | None = None  # NALB_LEVEL: for a server of a job by sites, the level of its sums: site or global
    heartbeat_s: float = HEARTBEAT_S
    startup_s: float = STARTUP_S
    deadline_s: float = DEADLINE_S
    precision: str = DEFAULT_PRECISION
    predictor: str = DEFAULT_PREDICTOR
    staleness: int = 0
    # NALB_KEYS: this node's key file (nalb/transport/keys.py). With it all connections are encrypted; by default none is.
    keys_path: str | None = None
    starts_together: bool = False  # nalb launch starts all processes at once; other launchers may take minutes
    # NALB_ADDRESSES: the nodes' IP addresses, with commas. Only connections to these are watched; None: all are.
    addresses: frozenset[str] | None = None
    has_agents: bool = False  # whether agents sum gradients, in place of MXNet's servers

    @property
    def process(self) -> str:
        """The process's role as messages name it: 'worker', 'site server'."""
        return self.role if self.level is None else f"{self.level} {self.role}"

    def sites_of(self, nodes: Sequence[str]) -> Sites | None:
        """The sites of these nodes, in their order; None: sums have one level. Raises InputError for a node without a site."""
        if self.sites is None:
            return None
        site_of_node = read_sites(self.sites)
        if missing := [node for node in nodes if node not in site_of_node]:
            raise InputError(f"environment variable NALB_SITES names no site of {listed(missing)}: give each node's")
        sites = Sites(tuple(site_of_node[node] for node in nodes), pushes_zeros=not self.has_agents)
        return sites if sites.has_levels else None

    @property
    def pushers(self) -> int:
        """How many workers push a slice to this server, which answers once all have."""
        if self.sites is None or self.level is None:
            return self.num_workers
        nodes = list(read_sites(self.sites))
        if (sites := self.sites_of(nodes)) is None:
            return self.num_workers
        return sites.count if self.level == "global" else int(sites.machines[nodes.index(self.node)])

    @property
    def silence_s(self) -> float:
        """How long a process, or the coordinator, may be silent."""
        return SILENCE * self.deadline_s

    @property
    def weights(self) -> tuple[int, ...] | None:
        """The weights of Fela's sub-models; None: they are tuned while training."""
        return read_weights(self.token_weights) if self.token_weights else None

    @property
    def predicts_speed(self) -> bool:
        """Whether batch sizes follow from speeds that a predictor foresees."""
        return self.batching in ("lb-bsp", JOINT_BATCHING)

    @property
    def batch_maxima(self) -> tuple[int, ...] | None:
        """The most samples of each worker, by rank. Raises InputError."""
        return batch_maxima(self.batch_most, self.num_workers, "environment variable NALB_BATCH_MOST")


def from_environment(environ: Mapping[str, str], hostname: str) -> Settings:
    """Read and check a process's settings. `hostname` is the node's default name. Raises InputError, which names the variable."""

    def text(name: str, default: str | None = None) -> str:
        value = environ.get(name) or default
        if value is None:
            raise InputError(
                f"environment variable {name} is not set: start this process by `nalb launch`, or see --print-env"
            )
        return value

    said = options_in(environ)
    role = Choice(("worker", "server", "scheduler")).read("DMLC_ROLE", text("DMLC_ROLE", "worker"))
    num_workers, num_servers, root_port = (
        int(Number(1, most, is_whole=True).read(name, text(name)))
        for name, most in (
            ("DMLC_NUM_WORKER", WORKERS_MOST),
            ("DMLC_NUM_SERVER", WORKERS_MOST),
            ("DMLC_PS_ROOT_PORT", 65534),
        )
    )
    coordinator = text("NALB_COORDINATOR", f"{text('DMLC_PS_ROOT_URI')}:{root_port + 1}")
    settings = Settings(
        root_port=root_port,
        role=role,
        node=text("NALB_NODE", hostname),
        endpoint=f"tcp://{coordinator}",
        num_workers=num_workers,
        num_servers=num_servers,
        level=Choice(("site", "global")).read("NALB_LEVEL", environ["NALB_LEVEL"])
        if environ.get("NALB_LEVEL")
        else None,
        **_of_process(environ, said),
    )
    if settings.precision != DEFAULT_PRECISION:
        raise InputError(
            f"environment variable NALB_PRECISION={settings.precision}: fewer bytes need the plane for PyTorch: unset it"
        )
    if settings.scheme == GLOO.name:
        raise InputError(f"environment variable NALB_SCHEME={settings.scheme}: MXNet alone is {STOCK.name}")
    if settings.role == "server" and (settings.level is None) != (settings.sites is None):
        raise InputError(
            "environment variable NALB_LEVEL: give it, site or global, to each server of a job with NALB_SITES"
        )
    return _checked(settings)


def for_agents(environ: Mapping[str, str], *, node: str, endpoint: str, size: int, role: str) -> Settings:
    """The settings of a process of a job of agents, which has no DMLC_* variables. Raises InputError, which names the variable.

    size: the number of ranks; each is worker and server.
    """
    said = _of_process(environ, options_in(environ))
    return _checked(
        Settings(role=role, node=node, endpoint=endpoint, num_workers=size, num_servers=size, has_agents=True, **said)
    )


def check_agents(settings: Settings) -> None:
    """Raise InputError for what only jobs with MXNet have. settings: of the coordinator of a job of agents."""
    if given := [variable.name for name, variable in DECLARED.items() if name in OF_MXNET and getattr(settings, name)]:
        raise InputError(f"environment variable {given[0]} is of MXNet alone: unset it")
    if settings.is_pure and settings.label is None:  # a comparison labels its job with gloo
        raise InputError(f"environment variable NALB_SCHEME={settings.scheme}: PyTorch alone is {GLOO.name}")
    if settings.batching in (*BASELINES, FEDERATED):
        raise InputError(
            f"environment variable NALB_BATCHING={settings.batching} is of MXNet alone: choose another, or unset it"
        )


def _of_process(environ: Mapping[str, str], said: dict[str, Any]) -> dict[str, Any]:
    """Fields of Settings that any data plane has, from the environment. said: the options there."""
    slowest_s = SILENCE * said.get("deadline_s", DEADLINE_S) / HEARTBEATS
    return {
        "heartbeat_s": min(HEARTBEAT_S, slowest_s),
        "keys_path": environ.get("NALB_KEYS"),
        # NALB_JOB is nalb launch's mark. One that starts a single node does not know the others' addresses.
        "starts_together": "NALB_JOB" in environ and bool(environ.get("NALB_ADDRESSES")),
        "addresses": _addresses(environ.get("NALB_ADDRESSES") or None),
    } | said


def check_node(node: str) -> None:
    """Raise InputError for a name that no node may have."""
    if not node.isprintable() or not 1 <= len(node.encode()) <= NODE_MOST or "/" in node:
        raise InputError(
            f"environment variable NALB_NODE={node!r}: give a printable name of 1 to {NODE_MOST} bytes without /, since files "
            "are named by it"
        )


def _checked(settings: Settings) -> Settings:
    check_node(settings.node)
    if settings.sites is not None:
        _ = settings.sites_of([settings.node])
    slowest_s = settings.silence_s / HEARTBEATS
    if settings.heartbeat_s > slowest_s:
        raise InputError(
            f"environment variable NALB_HEARTBEAT_S={settings.heartbeat_s:g}: a deadline of {settings.deadline_s:g} s needs a "
            f"sign of life every {slowest_s:g} s: choose that or less, or a longer NALB_DEADLINE_S"
        )
    _ = settings.batch_maxima  # raises here if the value is wrong
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
    """The silence_s of a process with this environment, for those who watch it.

    If the deadline is no number, the default counts; the process itself refuses such a value.
    """
    return SILENCE * _seconds(environ, "NALB_DEADLINE_S", DEADLINE_S)


def startup_of(environ: Mapping[str, str]) -> float:
    """The startup_s of a process with this environment, likewise."""
    return _seconds(environ, "NALB_STARTUP_S", STARTUP_S)


def _seconds(environ: Mapping[str, str], variable: str, default_s: float) -> float:
    with suppress(ValueError):
        return float(environ.get(variable) or default_s)
    return default_s


def batch_maxima(text: str | None, workers: int, where: str) -> tuple[int, ...] | None:
    """Read the most samples of each worker, from one number for all or one for each. Raises InputError, which names `where`."""
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
