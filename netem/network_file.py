"""Network files: TOML in, a checked `Network` out. No clock and no namespaces: see schedule.py and emulation.py.

The Structs below are the file's tables: their types hold the limits of each field, and `__post_init__` what fields must be to each
other. Every mistake is an InputError of one line that names the file, the field and what to do. Nothing is guessed: an
unknown field, a rate given twice or a change of an undeclared link is an error. docs/network-files.md is the manual.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from nalb import toml_file
from nalb.errors import InputError
from nalb.units import mbps_to_bytes_per_s

CARRIED_DIRECTORY = Path(__file__).parent / "networks"
LOW_MBPS = 0.01  # below this one packet takes more than a second
HIGH_MBPS = 34_000.0  # tc's byte rates are 32-bit: 2^32 bytes/s is 34,359 Mbit/s
HIGH_TIME_S = 1e7  # about four months: longer is a typing mistake
HIGH_QUEUE_MS = 10_000.0
HIGH_QUEUE_BYTES = 2**32 - 1  # tc's limits are 32-bit, and count the burst too
BURST_MS = 1.0  # see shaping.py
# With its jitter. ARP gives up after 3 tries, 1 s apart, and between two such nodes its answer takes four delays.
HIGH_DELAY_MS = 700.0
MAX_NODES = 200  # addresses 10.77.0.1 to 10.77.0.200; the hub is 10.77.0.254
DEFAULT_QUEUE_MS = 50.0
LOW_CPU_QUOTA = 0.01  # Python alone takes seconds to start with less; the kernel's own limit is 0.001
HIGH_CPU_QUOTA = 1024.0  # more cores than machines have
HIGH_MEMORY_MB = 4e6  # more than machines have


def _number(low: float, high: float, unit: str) -> Meta:
    return Meta(ge=low, le=high, description=f"a number from {low:g} to {high:g} {unit}")


# \Z, not $, which a newline may follow. Linux allows 15 characters in an interface's name.
Name = Annotated[
    str,
    Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,14}\Z", description="1 to 15 of a-z, 0-9 and '-', not starting with '-'"),
]
NodeName = Annotated[str, Meta(description="the name of a node of this file")]
Mbps = Annotated[float, _number(LOW_MBPS, HIGH_MBPS, "Mbit/s")]
QueueMs = Annotated[float, _number(1, HIGH_QUEUE_MS, "ms")]
DelayMs = Annotated[float, _number(0, HIGH_DELAY_MS, "ms")]
Percent = Annotated[float, _number(0, 100, "percent")]
Cores = Annotated[float, _number(LOW_CPU_QUOTA, HIGH_CPU_QUOTA, "cores")]
MemoryMb = Annotated[float, _number(0, HIGH_MEMORY_MB, "MB")]
Flag = Annotated[bool, Meta(description="true or false")]
Seed = Annotated[int, Meta(ge=0, description="a whole number of 0 or more")]
EveryS = Annotated[float, _number(0.1, HIGH_TIME_S, "s")]
AtS = Annotated[float, _number(0.001, HIGH_TIME_S, "s (what holds from the start stands in [[nodes]] and [[links]])")]


class Access(Struct, frozen=True, forbid_unknown_fields=True):
    """The access link of a node or of a site."""

    up_mbps: Mbps | None = None  # what may be sent, Mbit/s with headers; None where [random] draws it
    down_mbps: Mbps | None = None  # what may be received; None where [random] draws it
    queue_ms: QueueMs = DEFAULT_QUEUE_MS  # how long a packet may wait in a full queue, each direction
    delay_ms: DelayMs = 0.0  # added to each packet, each direction
    jitter_ms: DelayMs = 0.0  # spread of the delay
    loss_percent: Percent = 0.0  # packets dropped at random, each direction


class Defaults(Access, frozen=True):
    """What [defaults] may say for all nodes, and each of [[nodes]] for itself."""

    cpu_quota: Cores | None = None  # that its processes may use together; None: all, or drawn by [cpu_random]
    memory_mb: MemoryMb = 0.0  # held there by a competing process, MB (10^6 bytes)
    is_worker: Flag = field(name="worker", default=True)  # whether a job runs a worker here; netem does not care
    is_server: Flag = field(name="server", default=True)  # whether a job runs a server here


class NetworkNode(Defaults, frozen=True, kw_only=True):
    """One machine and its access link."""

    name: Name  # also part of its namespace's name

    def __post_init__(self) -> None:
        _check_delay(self.delay_ms, self.jitter_ms)
        if not (self.is_worker or self.is_server):
            raise ValueError(f"worker and server are both false: give '{self.name}' a role or remove it")


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """A cap on one directed pair, below the rates of its two ends."""

    src: NodeName  # sending node
    dst: NodeName  # receiving node
    mbps: Mbps  # cap of src -> dst
    delay_ms: DelayMs = 0.0  # added to src's own delay
    jitter_ms: DelayMs = 0.0  # added to src's own jitter
    loss_percent: Percent = 0.0  # on top of src's own loss

    def __post_init__(self) -> None:
        _check_delay(self.delay_ms, self.jitter_ms)
        if self.src == self.dst:
            raise ValueError(f"dst is '{self.dst}', the same as src: give two different nodes")


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """New rates of one node, or a new cap of one declared link, from a moment on."""

    at_s: AtS  # seconds after the start
    node: NodeName | None = None  # the node that changes, or None
    src: NodeName | None = None  # the pair that changes, or None
    dst: NodeName | None = None
    up_mbps: Mbps | None = None  # the node's new uplink; None keeps it
    down_mbps: Mbps | None = None  # the node's new downlink; None keeps it
    mbps: Mbps | None = None  # the pair's new cap

    def __post_init__(self) -> None:
        of_node, of_pair = (self.up_mbps, self.down_mbps), (self.src, self.dst, self.mbps)
        if self.node is None and (None in of_pair or of_node != (None, None)):
            raise ValueError("node is missing: give node with up_mbps, down_mbps or both, or src, dst and mbps alone")
        if self.node is not None and (of_node == (None, None) or of_pair != (None, None, None)):
            raise ValueError("node is given: give up_mbps, down_mbps or both with it, and no src, dst or mbps")

    @property
    def pair(self) -> tuple[str, str] | None:
        """The (src, dst) that changes, or None."""
        return None if self.src is None or self.dst is None else (self.src, self.dst)


class RandomRedraws(Struct, frozen=True, forbid_unknown_fields=True):
    """Node rates drawn at 0 s and again every `every_s`; one number is both a node's up and down rate."""

    seed: Seed  # same seed, same rates, on every machine
    every_s: EveryS  # seconds between draws
    low_mbps: Mbps  # smallest rate
    high_mbps: Mbps  # largest rate

    def __post_init__(self) -> None:
        if self.low_mbps > self.high_mbps:
            raise ValueError(f"low_mbps is above high_mbps ({self.low_mbps:g} > {self.high_mbps:g}): exchange them")


class CpuChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A new quota of one node from a moment on. 0.5 is half a core's time, shared by all processes of the node."""

    at_s: AtS  # seconds after the start
    node: NodeName  # the node that changes
    cpu_quota: Cores


class CpuRedraws(Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas drawn for every node at 0 s and again every `every_s`."""

    seed: Seed  # same seed, same quotas, on every machine
    every_s: EveryS  # seconds between draws
    low_cpu_quota: Cores  # smallest quota
    high_cpu_quota: Cores  # largest quota

    def __post_init__(self) -> None:
        low, high = self.low_cpu_quota, self.high_cpu_quota
        if low > high:
            raise ValueError(f"low_cpu_quota is above high_cpu_quota ({low:g} > {high:g}): exchange them")


class Network(Struct, frozen=True, forbid_unknown_fields=True):
    """A checked network file."""

    name: Name  # part of every namespace's name
    nodes: Annotated[
        tuple[NetworkNode, ...], Meta(min_length=2, max_length=MAX_NODES, description=f"2 to {MAX_NODES} [[nodes]]")
    ]
    links: Annotated[tuple[Link, ...], Meta(description="each as [[links]]")] = ()
    changes: Annotated[tuple[Change, ...], Meta(description="each as [[changes]]")] = ()  # by time
    random: RandomRedraws | None = None
    cpu_changes: Annotated[tuple[CpuChange, ...], Meta(description="each as [[cpu_changes]]")] = ()  # by time
    cpu_random: CpuRedraws | None = None

    def __post_init__(self) -> None:
        names = self.node_names()
        pairs = [(link.src, link.dst) for link in self.links]
        for role in ("worker", "server"):
            if not any(getattr(node, f"is_{role}") for node in self.nodes):
                raise ValueError(f"nodes has no node with {role} = true: give at least one")
        ends = {f"links[{i}].{end}": getattr(link, end) for i, link in enumerate(self.links) for end in ("src", "dst")}
        ends |= {f"changes[{i}].node": change.node for i, change in enumerate(self.changes) if change.node is not None}
        ends |= {f"cpu_changes[{i}].node": change.node for i, change in enumerate(self.cpu_changes)}
        for place, name in ends.items():
            if name not in names:
                raise ValueError(f"{place} is '{name}', which is no node: name a node of this file")
        once: dict[str, tuple[Sequence[object], str]] = {
            "nodes": (names, "name: give each node its own"),
            "links": (pairs, "src and dst: give each directed pair once"),
            "changes": (
                [(one.at_s, one.node, one.pair) for one in self.changes],
                "at_s and node or pair: join the two",
            ),
            "cpu_changes": ([(one.at_s, one.node) for one in self.cpu_changes], "at_s and node: keep one of the two"),
        }
        for table, (keys, advice) in once.items():
            if len(set(keys)) < len(keys):
                again = next(index for index, key in enumerate(keys) if key in keys[:index])
                raise ValueError(f"{table}[{again}] repeats an earlier {advice}")
        for index, change in enumerate(self.changes):
            if change.pair is not None and change.pair not in pairs:
                told = " -> ".join(change.pair)
                raise ValueError(f"changes[{index}].src and dst name {told}, which has no cap: declare it in [[links]]")
        self._check_draws()
        self._check_queues()
        for name in ("changes", "cpu_changes"):
            force_setattr(self, name, tuple(sorted(getattr(self, name), key=lambda change: change.at_s)))

    def _check_draws(self) -> None:
        """That each rate and quota is either given or drawn."""
        for index, node in enumerate(self.nodes):
            for name, drawn in (("up_mbps", self.random), ("down_mbps", self.random), ("cpu_quota", self.cpu_random)):
                is_given, place = getattr(node, name) is not None, f"nodes[{index}].{name}"
                if is_given and drawn is not None:
                    table = "cpu_random" if drawn is self.cpu_random else "random"
                    raise ValueError(
                        f"{place} is given, there or in [defaults], although [{table}] draws it: remove one"
                    )
                if not is_given and drawn is None and name != "cpu_quota":
                    raise ValueError(
                        f"{place} is missing: give it there or in [defaults], or let [random] draw all rates"
                    )
        for index, change in enumerate(self.changes):
            if change.node is not None and self.random is not None:
                raise ValueError(f"changes[{index}].node changes a rate that [random] draws: remove one of the two")
        if self.cpu_changes and self.cpu_random is not None:
            raise ValueError("cpu_changes[0].node changes a quota that [cpu_random] draws: remove one of the two")

    def _check_queues(self) -> None:
        """That a full queue with the burst before it (shaping.py) can be counted, at every rate that its node ever has."""
        for index, node in enumerate(self.nodes):
            rates = [node.up_mbps, node.down_mbps, self.random.high_mbps if self.random else None]
            rates += [
                rate
                for change in self.changes
                if change.node == node.name
                for rate in (change.up_mbps, change.down_mbps)
            ]
            highest_mbps = max(rate for rate in rates if rate is not None)
            most_ms = math.floor(HIGH_QUEUE_BYTES / mbps_to_bytes_per_s(highest_mbps) * 1000 - BURST_MS)
            if node.queue_ms > most_ms:
                raise ValueError(
                    f"nodes[{index}].queue_ms is {node.queue_ms:g} at {highest_mbps:g} Mbit/s, a queue of 4 GiB and more: "
                    f"give at most {most_ms} ms"
                )

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


class _Given(Struct, frozen=True):
    """What of a file is read before all else: what each node takes over."""

    defaults: Defaults = Defaults()


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
    return parse_network(toml_file.read_text(path, "network file"), str(path))


def parse_network(text: str, source: str) -> Network:
    """Check the text of a network file; `source` names it in messages. Raises InputError."""
    document = toml_file.parse(text, source)
    toml_file.convert(document, _Given, source)
    defaults, nodes = document.pop("defaults", {}), document.get("nodes")
    if isinstance(nodes, list):
        document["nodes"] = [defaults | node if isinstance(node, dict) else node for node in nodes]
    return toml_file.convert(document, Network, source)


def _check_delay(delay_ms: float, jitter_ms: float) -> None:
    if jitter_ms > delay_ms:
        raise ValueError(f"jitter_ms is {jitter_ms:g}, above the delay of {delay_ms:g} ms: give at most delay_ms")
    if delay_ms + jitter_ms > HIGH_DELAY_MS:
        raise ValueError(
            f"jitter_ms is {jitter_ms:g} beside a delay of {delay_ms:g} ms: give at most {HIGH_DELAY_MS:g} ms together"
        )
