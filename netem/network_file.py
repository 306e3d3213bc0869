"""Network files: TOML in, a checked `Network` out. No clock and no namespaces: see schedule.py and emulation.py.

Every mistake is an InputError of one line that names the file, the field and what to do. Nothing is guessed: an
unknown field, a rate given twice or a change of an undeclared link is an error. docs/network-files.md is the manual.
"""

import math
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from nalb.errors import InputError
from nalb.units import mbps_to_bytes_per_s
from netem.file_table import HIGH_TIME_S, Table
from netem.machines import CpuChange, CpuRedraws, parse_cpu_changes, parse_cpu_quota, parse_cpu_random, parse_memory_mb

CARRIED_DIRECTORY = Path(__file__).parent / "networks"
HIGH_QUEUE_MS = 10_000.0
HIGH_QUEUE_BYTES = 2**32 - 1  # tc's limits are 32-bit, and count the burst too
BURST_MS = 1.0  # see shaping.py
# With its jitter. ARP gives up after 3 tries, 1 s apart, and between two such nodes its answer takes four delays.
HIGH_DELAY_MS = 700.0
MAX_NODES = 200  # addresses 10.77.0.1 to 10.77.0.200; the hub is 10.77.0.254
DEFAULT_QUEUE_MS = 50.0


@dataclass(frozen=True)
class NetworkNode:
    """One machine and its access link."""

    name: str  # also part of its namespace's name
    up_mbps: float | None  # what it may send, Mbit/s with headers; None where [random] draws it
    down_mbps: float | None  # what it may receive; None where [random] draws it
    queue_ms: float  # how long a packet may wait in a full queue, each direction
    delay_ms: float  # added to each packet, each direction
    jitter_ms: float  # spread of the delay
    loss_percent: float  # packets dropped at random, each direction
    cpu_quota: float | None = None  # cores that its processes may use together; None: all, or drawn by [cpu_random]
    memory_mb: float = 0.0  # held there by a competing process, MB (10^6 bytes)
    is_worker: bool = True  # whether a job runs a worker here; nothing in netem depends on it
    is_server: bool = True  # whether a job runs a server here


@dataclass(frozen=True)
class Link:
    """A cap on one directed pair, below the rates of its two ends."""

    src: str  # sending node
    dst: str  # receiving node
    mbps: float  # cap of src -> dst
    delay_ms: float  # added to src's own delay
    jitter_ms: float  # added to src's own jitter
    loss_percent: float  # on top of src's own loss


@dataclass(frozen=True)
class Change:
    """New rates of one node, or of one declared link, from a moment on."""

    at_s: float  # seconds after the start
    node: str | None  # the node that changes, or None
    pair: tuple[str, str] | None  # the (src, dst) that changes, or None
    up_mbps: float | None  # the node's new uplink; None keeps it
    down_mbps: float | None  # the node's new downlink; None keeps it
    mbps: float | None  # the pair's new cap


@dataclass(frozen=True)
class RandomRedraws:
    """Node rates drawn at 0 s and again every `every_s`; one number is both a node's up and down rate."""

    seed: int  # same seed, same rates, on every machine
    every_s: float  # seconds between draws
    low_mbps: float  # smallest rate
    high_mbps: float  # largest rate


@dataclass(frozen=True)
class Network:
    """A checked network file."""

    name: str  # part of every namespace's name
    nodes: tuple[NetworkNode, ...]
    links: tuple[Link, ...]
    changes: tuple[Change, ...]  # by time
    random: RandomRedraws | None
    cpu_changes: tuple[CpuChange, ...] = ()  # by time
    cpu_random: CpuRedraws | None = None

    @property
    def limits_cpu(self) -> bool:
        """Whether any node's CPU is limited at any time."""
        return bool(self.cpu_changes or self.cpu_random or any(node.cpu_quota is not None for node in self.nodes))

    @property
    def is_static(self) -> bool:
        """Whether neither links nor machines change over time."""
        return not (self.links_change or self.cpu_changes or self.cpu_random)

    @property
    def links_change(self) -> bool:
        """Whether rates change over time."""
        return bool(self.changes or self.random)

    def node_names(self) -> tuple[str, ...]:
        """The nodes' names in the file's order."""
        return tuple(node.name for node in self.nodes)


def carried_networks() -> dict[str, Path]:
    """The networks that come with the package, by name."""
    return {path.stem: path for path in sorted(CARRIED_DIRECTORY.glob("*.toml"))}


def find_network(word: str) -> Path:
    """The file that a command line's FILE means: a path, or the bare name of a carried network.

    Raises InputError where it is neither.
    """
    path = Path(word)
    if os.path.isfile(path) or "/" in word or word.endswith(".toml"):
        return path
    carried = carried_networks()
    if word not in carried:
        raise InputError(f"no network file '{word}': give a path, or one of {', '.join(carried)}")
    return carried[word]


def load_network(path: str | Path) -> Network:
    """Read and check a network file. Raises InputError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path}: cannot be read ({reason}): give a network file in TOML") from None
    return parse_network(text, str(path))


def parse_network(text: str, source: str) -> Network:
    """Check the text of a network file; `source` names it in messages. Raises InputError."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: not TOML, or a number of thousands of digits
        raise InputError(f"{source}: is not TOML ({error}): correct that line") from None
    top = Table(source, "", document, _TOP_FIELDS)
    name = top.name("name")
    redraws, cpu_redraws = _parse_random(top), parse_cpu_random(top)
    defaults = top.table("defaults", _NODE_FIELDS)
    tables = top.tables("nodes", {"name", *_NODE_FIELDS})
    nodes = tuple(_parse_node(table, defaults, redraws, cpu_redraws) for table in tables)
    if not 2 <= len(nodes) <= MAX_NODES:
        raise top.wrong("nodes", f"has {len(nodes)} nodes", f"give 2 to {MAX_NODES} [[nodes]]")
    names = [node.name for node in nodes]
    for index, node_name in enumerate(names):
        if node_name in names[:index]:
            raise top.wrong(f"nodes[{index}].name", f"repeats '{node_name}'", "give each node its own name")
    for role in ("worker", "server"):
        if not any(getattr(node, f"is_{role}") for node in nodes):
            raise top.wrong("nodes", f"has no node with {role} = true", "give at least one")
    links = _parse_links(top, names)
    changes = _parse_changes(top, names, links, redraws)
    _check_queues(top, nodes, changes, redraws)
    cpu_changes = parse_cpu_changes(top, names, cpu_redraws)
    return Network(name, nodes, links, changes, redraws, cpu_changes, cpu_redraws)


_TOP_FIELDS = {"name", "defaults", "random", "nodes", "links", "changes", "cpu_changes", "cpu_random"}
_NODE_FIELDS = {"up_mbps", "down_mbps", "queue_ms", "delay_ms", "jitter_ms", "loss_percent", "cpu_quota", "memory_mb"}
_NODE_FIELDS |= {"worker", "server"}


def _impairments(table: Table, defaults: Table | None = None) -> tuple[float, float, float]:
    """(delay_ms, jitter_ms, loss_percent) of a node or link."""

    def number(field: str, high: float, unit: str) -> float:
        return table.number(field, 0, high, unit, defaults.number(field, 0, high, unit, 0) if defaults else 0)

    delay_ms, jitter_ms = number("delay_ms", HIGH_DELAY_MS, "ms"), number("jitter_ms", HIGH_DELAY_MS, "ms")
    loss_percent = number("loss_percent", 100, "percent")
    if jitter_ms > delay_ms:
        raise table.wrong("jitter_ms", f"is {jitter_ms:g}, above the delay of {delay_ms:g} ms", "give at most delay_ms")
    if delay_ms + jitter_ms > HIGH_DELAY_MS:
        what = f"is {jitter_ms:g} beside a delay of {delay_ms:g} ms"
        raise table.wrong("jitter_ms", what, f"give at most {HIGH_DELAY_MS:g} ms together")
    return delay_ms, jitter_ms, loss_percent


def _parse_node(
    table: Table, defaults: Table, redraws: RandomRedraws | None, cpu_redraws: CpuRedraws | None
) -> NetworkNode:
    name = table.name("name")
    rates: list[float | None] = []
    for field in ("up_mbps", "down_mbps"):
        if redraws is None:
            default = defaults.mbps(field) if field in defaults.values else None
            rates.append(table.mbps(field, default))
            continue
        for given in (table, defaults):
            if field in given.values:
                raise given.wrong(field, "is given although [random] draws it", "remove one of the two")
        rates.append(None)
    default_queue_ms = defaults.number("queue_ms", 1, HIGH_QUEUE_MS, "ms", DEFAULT_QUEUE_MS)
    queue_ms = table.number("queue_ms", 1, HIGH_QUEUE_MS, "ms", default_queue_ms)
    impairments = _impairments(table, defaults)
    cpu_quota, memory_mb = parse_cpu_quota(table, defaults, cpu_redraws), parse_memory_mb(table, defaults)
    is_worker, is_server = (table.flag(role, defaults.flag(role, True)) for role in ("worker", "server"))
    if not (is_worker or is_server):
        raise table.wrong("worker", "and server are both false", f"give '{name}' a role or remove it")
    return NetworkNode(name, rates[0], rates[1], queue_ms, *impairments, cpu_quota, memory_mb, is_worker, is_server)


def _parse_random(top: Table) -> RandomRedraws | None:
    if "random" not in top.values:
        return None
    table = top.table("random", {"seed", "every_s", "low_mbps", "high_mbps"})
    seed = table.seed()
    every_s = table.number("every_s", 0.1, HIGH_TIME_S, "s")
    low_mbps, high_mbps = table.mbps("low_mbps"), table.mbps("high_mbps")
    if low_mbps > high_mbps:
        raise table.wrong("low_mbps", f"is above high_mbps ({low_mbps:g} > {high_mbps:g})", "exchange them")
    return RandomRedraws(seed, every_s, low_mbps, high_mbps)


def _check_queues(
    top: Table, nodes: tuple[NetworkNode, ...], changes: tuple[Change, ...], redraws: RandomRedraws | None
) -> None:
    """That a full queue with the burst before it (shaping.py) can be counted, at every rate that its node ever has."""
    for index, node in enumerate(nodes):
        rates = [node.up_mbps, node.down_mbps, redraws.high_mbps if redraws else None]
        rates += [mbps for change in changes if change.node == node.name for mbps in (change.up_mbps, change.down_mbps)]
        highest_mbps = max(mbps for mbps in rates if mbps is not None)
        most_ms = math.floor(HIGH_QUEUE_BYTES / mbps_to_bytes_per_s(highest_mbps) * 1000 - BURST_MS)
        if node.queue_ms > most_ms:
            what = f"is {node.queue_ms:g} at {highest_mbps:g} Mbit/s, a queue of 4 GiB and more"
            raise top.wrong(f"nodes[{index}].queue_ms", what, f"give at most {most_ms} ms")


def _parse_links(top: Table, names: list[str]) -> tuple[Link, ...]:
    links: list[Link] = []
    for table in top.tables("links", {"src", "dst", "mbps", "delay_ms", "jitter_ms", "loss_percent"}):
        src, dst = table.member("src", names), table.member("dst", names)
        if src == dst:
            raise table.wrong("dst", f"is '{dst}', the same as src", "give two different nodes")
        if any((link.src, link.dst) == (src, dst) for link in links):
            raise table.wrong("src", f"and dst repeat {src} -> {dst}", "give each directed pair once")
        links.append(Link(src, dst, table.mbps("mbps"), *_impairments(table)))
    return tuple(links)


def _parse_changes(
    top: Table, names: list[str], links: tuple[Link, ...], redraws: RandomRedraws | None
) -> tuple[Change, ...]:
    pairs = [(link.src, link.dst) for link in links]
    changes: list[Change] = []
    for table in top.tables("changes", {"at_s", "node", "src", "dst", "up_mbps", "down_mbps", "mbps"}):
        at_s = table.number("at_s", 0.001, HIGH_TIME_S, "s (the starting rates stand in [[nodes]] and [[links]])")
        change = _pair_change(table, at_s, names, pairs) if "node" not in table.values else None
        change = change or _node_change(table, at_s, names, redraws)
        if any((change.at_s, change.node, change.pair) == (old.at_s, old.node, old.pair) for old in changes):
            raise table.wrong("at_s", f"repeats a change at {at_s:g} s of the same node or pair", "join the two")
        changes.append(change)
    return tuple(sorted(changes, key=lambda change: change.at_s))


def _node_change(table: Table, at_s: float, names: list[str], redraws: RandomRedraws | None) -> Change:
    node = table.member("node", names)
    for field in ("src", "dst", "mbps"):
        if field in table.values:
            raise table.wrong(field, "stands beside node", "change a node (up_mbps, down_mbps) or a pair (mbps)")
    if redraws is not None:
        raise table.wrong("node", "changes a rate that [random] draws", "remove the change or [random]")
    if "up_mbps" not in table.values and "down_mbps" not in table.values:
        raise table.wrong("up_mbps", "is missing", "give up_mbps, down_mbps or both")
    up_mbps = table.mbps("up_mbps") if "up_mbps" in table.values else None
    down_mbps = table.mbps("down_mbps") if "down_mbps" in table.values else None
    return Change(at_s, node, None, up_mbps, down_mbps, None)


def _pair_change(table: Table, at_s: float, names: list[str], pairs: list[tuple[str, str]]) -> Change:
    if "src" not in table.values and "dst" not in table.values:
        raise table.wrong("node", "is missing", "give the node that changes, or src and dst")
    pair = (table.member("src", names), table.member("dst", names))
    for field in ("up_mbps", "down_mbps"):
        if field in table.values:
            raise table.wrong(field, "is a node's rate", "give a pair's rate as mbps")
    if pair not in pairs:
        raise table.wrong("src", f"and dst name {pair[0]} -> {pair[1]}, which has no cap", "declare it in [[links]]")
    return Change(at_s, None, pair, None, None, table.mbps("mbps"))
