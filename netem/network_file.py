"""Network files: TOML in, a checked `Network` out. No clock and no namespaces: see schedule.py and emulation.py.

The Structs below are the file's tables. Their types hold the limits of each field, and `__post_init__` checks fields against each
other. Every mistake is an InputError of one line that names the file, the field and what to do. Nothing is guessed: an unknown
field, a rate given twice or a change of an undeclared link is an error. docs/network-files.md is the manual.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, to_builtins
from msgspec.structs import force_setattr

from nalb import toml_file
from nalb.errors import InputError, did_you_mean
from nalb.units import mbps_to_bytes_per_s
from netem.traces import Trace, parse_trace

CARRIED_DIRECTORY = Path(__file__).parent / "networks"
LOW_MBPS = 0.01  # below this one packet takes more than a second
HIGH_MBPS = 34_000.0  # tc's byte rates are 32-bit: 2^32 bytes/s is 34,359 Mbit/s
HIGH_TIME_S = 1e7  # about four months: longer is a typing mistake
HIGH_QUEUE_MS = 10_000.0
HIGH_QUEUE_BYTES = 2**32 - 1  # tc's limits are 32-bit
# Delay and jitter together. ARP gives up after 3 tries, 1 s apart, and between two such nodes its answer takes four delays.
HIGH_DELAY_MS = 700.0
HIGH_ROUND_TRIP_MS = 4 * HIGH_DELAY_MS
HIGH_LOSS_PERCENT = 99.0  # a node that reaches nobody is in no network
MAX_NODES = 200  # addresses 10.77.0.1 to 10.77.0.200; the hub is 10.77.0.254
MAX_SITES = 50  # their bridges are 10.77.0.201 to 10.77.0.250
DEFAULT_QUEUE_MS = 50.0
LOW_CPU_QUOTA = 0.01  # Python alone takes seconds to start with less; the kernel's own limit is 0.001
HIGH_CPU_QUOTA = 1024.0  # more cores than machines have
HIGH_MEMORY_MB = 4e6  # more than machines have
TRACES = ("up_trace", "down_trace")  # the fields of files that give paths of traces


def _number(low: float, high: float, unit: str) -> Meta:
    return Meta(ge=low, le=high, description=f"a number from {low:g} to {high:g} {unit}")


# The pattern ends with \Z, since a newline may follow $. Linux allows 15 characters in an interface's name.
Name = Annotated[
    str,
    Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,14}\Z", description="1 to 15 of a-z, 0-9 and '-', not starting with '-'"),
]
NodeName = Annotated[str, Meta(description="the name of a node of this file")]
SiteName = Annotated[str, Meta(description="the name of a site of this file")]
Mbps = Annotated[float, _number(LOW_MBPS, HIGH_MBPS, "Mbit/s")]
QueueMs = Annotated[float, _number(1, HIGH_QUEUE_MS, "ms")]
DelayMs = Annotated[float, _number(0, HIGH_DELAY_MS, "ms")]
Percent = Annotated[float, _number(0, 100, "percent")]
LossPercent = Annotated[float, _number(0, HIGH_LOSS_PERCENT, "percent")]
Cores = Annotated[float, _number(LOW_CPU_QUOTA, HIGH_CPU_QUOTA, "cores")]
MemoryMb = Annotated[float, _number(0, HIGH_MEMORY_MB, "MB")]
Flag = Annotated[bool, Meta(description="true or false")]
Seed = Annotated[int, Meta(ge=0, description="a whole number of 0 or more")]
EveryS = Annotated[float, _number(0.1, HIGH_TIME_S, "s")]
TraceFile = Annotated[Trace, Meta(description="the path of a trace file")]
CongestionControl = Annotated[Literal["cubic", "reno", "bbr"], Meta(description="'cubic', 'reno' or 'bbr'")]
TraceEnd = Annotated[Literal["loop", "hold"], Meta(description="'loop' or 'hold'")]
AtS = Annotated[
    float, _number(0.001, HIGH_TIME_S, "s (what holds from the start stands in [[nodes]], [[sites]] and [[links]])")
]


class Access(Struct, frozen=True, forbid_unknown_fields=True):
    """The access link of a node or of a site."""

    up_mbps: Mbps | None = None  # what may be sent, Mbit/s with headers; None: drawn by [random] or traced
    down_mbps: Mbps | None = None  # what may be received, likewise
    queue_ms: QueueMs = DEFAULT_QUEUE_MS  # how long a packet may wait in a full queue, each direction
    delay_ms: DelayMs = 0.0  # added to each packet, each direction
    jitter_ms: DelayMs = 0.0  # spread of the delay
    loss_percent: LossPercent = 0.0  # packets dropped at random, each direction
    reorder_percent: Percent = 0.0  # packets that are not delayed, and so overtake others, each direction
    up_trace: TraceFile | None = None  # the trace that the uplink's rate follows
    down_trace: TraceFile | None = None  # the trace that the downlink's rate follows
    trace_end: TraceEnd = "loop"  # what comes after a trace's last line

    @property
    def traces(self) -> tuple[Trace | None, Trace | None]:
        """The traces of the way up and of the way down."""
        return self.up_trace, self.down_trace

    @property
    def highest_delay_ms(self) -> float:
        """The longest delay of a packet at any time, with its jitter."""
        steps = [step for trace in self.traces if trace is not None for step in trace.steps]
        return self.jitter_ms + max([self.delay_ms, *(step.delay_ms for step in steps if step.delay_ms is not None)])


class Defaults(Access, frozen=True):
    """The fields that [defaults] may give for all nodes, and each of [[nodes]] for itself."""

    cpu_quota: Cores | None = None  # cores that its processes may use together; None: all, or drawn by [cpu_random]
    memory_mb: MemoryMb = 0.0  # memory that a competing process holds there, MB (10^6 bytes)
    is_worker: Flag = field(name="worker", default=True)  # whether a job runs a worker here; netem makes no difference
    is_server: Flag = field(name="server", default=True)  # whether a job runs a server here


class NetworkNode(Defaults, frozen=True, kw_only=True):
    """One machine and its access link."""

    name: Name  # also part of its namespace's name
    site: SiteName | None = None  # the site behind whose uplink it is; None: its link goes to the core

    def __post_init__(self) -> None:
        _check_delay(self)
        if not (self.is_worker or self.is_server):
            raise ValueError(f"worker and server are both false: give '{self.name}' a role or remove it")


class Site(Access, frozen=True, kw_only=True):
    """Several machines on a LAN, behind one link to the core that they share."""

    name: Name  # also part of its namespace's name; no node has it

    def __post_init__(self) -> None:
        _check_delay(self)


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """A cap on one directed pair, below the rates of its two ends, and the pair's own delay and loss."""

    src: NodeName  # sending node
    dst: NodeName  # receiving node
    mbps: Mbps  # cap of src -> dst
    delay_ms: DelayMs = 0.0  # added to src's own delay
    jitter_ms: DelayMs = 0.0  # added to src's own jitter
    loss_percent: Percent = 0.0  # on top of src's own loss
    reorder_percent: Percent = 0.0  # on top of src's own reordering

    def __post_init__(self) -> None:
        _check_delay(self)
        if self.src == self.dst:
            raise ValueError(f"dst is '{self.dst}', the same as src: give two different nodes")


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """New rates of one node or site, or a new cap of one declared link, from a moment on."""

    at_s: AtS  # seconds after the start
    node: NodeName | None = None  # the node that changes, or None
    src: NodeName | None = None  # the pair that changes, or None
    dst: NodeName | None = None
    up_mbps: Mbps | None = None  # the node's or site's new uplink; None keeps it
    down_mbps: Mbps | None = None  # the node's or site's new downlink; None keeps it
    mbps: Mbps | None = None  # the pair's new cap
    site: SiteName | None = None  # the site that changes, or None

    def __post_init__(self) -> None:
        rates, of_pair = (self.up_mbps, self.down_mbps), (self.src, self.dst, self.mbps)
        if self.node is not None and self.site is not None:
            raise ValueError("site is given beside node: keep one of the two, and make two changes for both")
        if self.access is None and (None in of_pair or rates != (None, None)):
            raise ValueError(
                "node is missing: give node or site with up_mbps, down_mbps or both, or src, dst and mbps alone"
            )
        if self.access is not None and (rates == (None, None) or of_pair != (None, None, None)):
            place = "site" if self.node is None else "node"
            raise ValueError(f"{place} is given: give up_mbps, down_mbps or both with it, and no src, dst or mbps")

    @property
    def access(self) -> str | None:
        """The node or site whose access link changes, or None; no site has a node's name."""
        return self.site if self.node is None else self.node

    @property
    def pair(self) -> tuple[str, str] | None:
        """The (src, dst) that changes, or None."""
        return None if self.src is None or self.dst is None else (self.src, self.dst)


class RandomRedraws(Struct, frozen=True, forbid_unknown_fields=True):
    """Rates drawn at 0 s and again every `every_s`, for the sites and for the nodes outside sites. One number is both the up and
    the down rate."""

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
    sites: Annotated[
        tuple[Site, ...], Meta(max_length=MAX_SITES, description=f"at most {MAX_SITES} sites, each as [[sites]]")
    ] = ()
    seed: Seed = 0  # of losses, jitter and reordering
    # Whether TCP on the nodes halves its congestion window for each retransmission timeout of a pause (RFC 2861), Linux's default.
    slow_start_after_idle: Flag = True
    # The congestion control of TCP on the nodes; None: cubic, or reno where the kernel has no cubic.
    congestion_control: CongestionControl | None = None

    def __post_init__(self) -> None:
        names, sites = self.node_names(), self.site_names()
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
            "sites": (sites, "name: give each site its own"),
            "links": (pairs, "src and dst: give each directed pair once"),
            "changes": (
                [(one.at_s, one.access, one.pair) for one in self.changes],
                "at_s and node, site or pair: join the two",
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
        self._check_sites()
        self._check_round_trips()
        self._check_draws()
        self._check_queues()
        for name in ("changes", "cpu_changes"):
            force_setattr(self, name, tuple(sorted(getattr(self, name), key=lambda change: change.at_s)))

    def _check_sites(self) -> None:
        """Check that each site has nodes, that each named site is declared, and that its delays on top of a node's are allowed."""
        names, sites = self.node_names(), {site.name: site for site in self.sites}
        for index, site in enumerate(self.sites):
            if site.name in names:
                raise ValueError(f"sites[{index}].name is '{site.name}', which is a node's: give it another")
            if not any(node.site == site.name for node in self.nodes):
                raise ValueError(
                    f"sites[{index}].name is '{site.name}', which no node names: give it a node or remove it"
                )
        named = {f"nodes[{i}].site": node.site for i, node in enumerate(self.nodes)}
        named |= {f"changes[{i}].site": change.site for i, change in enumerate(self.changes)}
        for place, name in named.items():
            if name is not None and name not in sites:
                raise ValueError(f"{place} is '{name}', which is no site: declare it in [[sites]]")
        for index, node in enumerate(self.nodes):
            if node.site is not None:
                ways = (node, sites[node.site])
                if sum(way.highest_delay_ms for way in ways) > HIGH_DELAY_MS:
                    raise ValueError(
                        f"nodes[{index}].delay_ms, or that of a trace, and jitter_ms come on top of those of site "
                        f"'{node.site}': give at most {HIGH_DELAY_MS:g} ms together"
                    )

    def _check_round_trips(self) -> None:
        """Check that delays of pairs, on top of those of both ends, leave an answer as little time as without them."""
        ways = {access.name: access.highest_delay_ms for access in self._accesses().values()}
        site, delay_ms = {node.name: node.site for node in self.nodes}, {}
        for link in self.links:
            delay_ms[link.src, link.dst] = link.delay_ms + link.jitter_ms
        for index, link in enumerate(self.links):
            ends = {link.src, link.dst}
            if site[link.src] != site[link.dst]:
                ends |= {one for one in (site[link.src], site[link.dst]) if one is not None}
            there, back = delay_ms[link.src, link.dst], delay_ms.get((link.dst, link.src), 0.0)
            round_trip_ms = 2 * sum(ways[end] for end in ends) + there + back
            if there and round_trip_ms > HIGH_ROUND_TRIP_MS:
                raise ValueError(
                    f"links[{index}].delay_ms, with jitter_ms and the delays of both ends, makes a round trip of "
                    f"{round_trip_ms:g} ms: give delays of at most {HIGH_ROUND_TRIP_MS:g} ms together"
                )

    def _check_draws(self) -> None:
        """Check that each rate is either given, traced or drawn, and each quota either given or drawn."""
        for place, access in self._accesses().items():
            drawn = self.random is not None and not self._is_in_site(access)
            for name, trace in zip(("up_mbps", "down_mbps"), access.traces, strict=True):
                if trace is not None and getattr(access, name) is not None:
                    raise ValueError(f"{place}.{name} is given beside {name.removesuffix('mbps')}trace: remove one")
                is_given = getattr(access, name) is not None or trace is not None
                if is_given and drawn:
                    raise ValueError(
                        f"{place}.{name} is given, there or in [defaults], although [random] draws it: remove one"
                    )
                if not is_given and not drawn:
                    advice = "give it there" if isinstance(access, Site) else "give it there or in [defaults]"
                    draws = "" if self.random is not None else ", or let [random] draw all rates"
                    raise ValueError(f"{place}.{name} is missing: {advice}{draws}")
        for index, node in enumerate(self.nodes):
            if node.cpu_quota is not None and self.cpu_random is not None:
                raise ValueError(
                    f"nodes[{index}].cpu_quota is given, there or in [defaults], although [cpu_random] draws it: remove one"
                )
        drawn_names = {access.name for access in self._accesses().values() if not self._is_in_site(access)}
        for index, change in enumerate(self.changes):
            if self.random is not None and change.access in drawn_names:
                place = "site" if change.node is None else "node"
                raise ValueError(f"changes[{index}].{place} changes a rate that [random] draws: remove one of the two")
        traced = {access.name: access.traces for access in self._accesses().values()}
        for index, change in enumerate(self.changes):
            if change.access is None:
                continue
            for name, trace in zip(("up_mbps", "down_mbps"), traced[change.access], strict=True):
                if trace is not None and getattr(change, name) is not None:
                    raise ValueError(
                        f"changes[{index}].{name} changes a rate that follows a trace: remove one of the two"
                    )
        if self.cpu_changes and self.cpu_random is not None:
            raise ValueError("cpu_changes[0].node changes a quota that [cpu_random] draws: remove one of the two")

    def _check_queues(self) -> None:
        """Check that tc can count a full queue and the burst before it (shaping.py), at every rate that the link ever has."""
        for place, access in self._accesses().items():
            drawn = None if self.random is None or self._is_in_site(access) else self.random.high_mbps
            rates = [access.up_mbps, access.down_mbps, drawn]
            rates += [step.mbps for trace in access.traces if trace is not None for step in trace.steps]
            rates += [
                rate
                for change in self.changes
                if change.access == access.name
                for rate in (change.up_mbps, change.down_mbps)
            ]
            highest_mbps = max(rate for rate in rates if rate is not None)
            most_ms = math.floor(HIGH_QUEUE_BYTES / mbps_to_bytes_per_s(highest_mbps) * 1000)
            if access.queue_ms > most_ms:
                raise ValueError(
                    f"{place}.queue_ms is {access.queue_ms:g} at {highest_mbps:g} Mbit/s, a queue of 4 GiB and more: "
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
        """Whether rates or delays of links change over time."""
        traces = [trace for access in self.traced for trace in access.traces if trace is not None]
        return bool(self.changes or self.random) or not all(trace.is_constant for trace in traces)

    @property
    def traced(self) -> tuple["NetworkNode | Site", ...]:
        """The nodes and sites whose links follow a trace."""
        return tuple(access for access in self._accesses().values() if access.traces != (None, None))

    def node_names(self) -> tuple[str, ...]:
        """The nodes' names in the file's order."""
        return tuple(node.name for node in self.nodes)

    def site_names(self) -> tuple[str, ...]:
        """The declared sites' names in the file's order."""
        return tuple(site.name for site in self.sites)

    def site_of_nodes(self) -> tuple[str, ...]:
        """The site of each node in the file's order. A node outside all sites counts as a site of its own name."""
        return tuple(node.site or node.name for node in self.nodes)

    def members(self, site_name: str) -> tuple[str, ...]:
        """The nodes of a declared site in the file's order."""
        return tuple(node.name for node in self.nodes if node.site == site_name)

    def _accesses(self) -> dict[str, NetworkNode | Site]:
        """All nodes and sites, by their place in the file."""
        nodes = {f"nodes[{index}]": node for index, node in enumerate(self.nodes)}
        return nodes | {f"sites[{index}]": site for index, site in enumerate(self.sites)}

    @staticmethod
    def _is_in_site(access: NetworkNode | Site) -> bool:
        return isinstance(access, NetworkNode) and access.site is not None


class _Given(Struct, frozen=True):
    """The part of a file that is read before all else: the defaults that each node takes over."""

    defaults: Defaults = Defaults()


class _Nodes(Struct, frozen=True):
    """The part of a file that is checked before the number of nodes."""

    nodes: list[NetworkNode]


def carried_networks() -> dict[str, Path]:
    """The networks that come with the package, by name."""
    return {path.stem: path for path in sorted(CARRIED_DIRECTORY.glob("*.toml"))}


def find_network(word: str) -> Path:
    """The file that a command line's FILE means: a path, or the bare name of a carried network.

    Raises InputError where the word is neither.
    """
    path = Path(word)
    if os.path.isfile(path) or "/" in word or word.endswith(".toml"):
        return path
    carried = carried_networks()
    if word not in carried:
        kind = f"'{word}' is a folder" if os.path.isdir(path) else f"no network file '{word}'"
        raise InputError(f"{kind}: {did_you_mean(word, carried)}give a path, or one of {', '.join(carried)}")
    return carried[word]


def load_network(path: str | Path) -> Network:
    """Read and check a network file. Raises InputError."""
    return parse_network(toml_file.read_text(path, "network file"), str(path))


def parse_network(text: str, source: str) -> Network:
    """Check the text of a network file; `source` names it in messages. Raises InputError."""
    document = toml_file.parse(text, source)
    defaults, nodes = document.pop("defaults", {}), document.get("nodes")
    toml_file.convert({"defaults": _untraced(defaults, source)}, _Given, source)
    if isinstance(nodes, list):
        document["nodes"] = [_with_defaults(defaults, node) if isinstance(node, dict) else node for node in nodes]
    _read_traces(document, source)
    if isinstance(nodes, list):  # a mistake in a node is told before one of their number
        toml_file.convert(document, _Nodes, source)
    return toml_file.convert(document, Network, source)


def _with_defaults(defaults: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A node's table with the defaults that it takes over: no rate where it gives a trace, no trace where it gives a rate."""
    instead = {"up_trace": "up_mbps", "down_trace": "down_mbps", "up_mbps": "up_trace", "down_mbps": "down_trace"}
    left_out = {other for name, other in instead.items() if name in node}
    return {name: value for name, value in defaults.items() if name not in left_out} | node


def _untraced(defaults: Any, source: str) -> Any:
    """The defaults less the paths of traces, which each node reads for itself. Raises InputError for a path that is none."""
    if not isinstance(defaults, dict):
        return defaults
    for name in TRACES:
        if name in defaults:
            _require_path(defaults[name], f"defaults.{name}", source)
    return {name: value for name, value in defaults.items() if name not in TRACES}


def _require_path(given: Any, place: str, source: str) -> None:
    if not isinstance(given, str):
        raise InputError(f"{source}: {place} is {given!r}: give the path of a trace file")


def _require_file(path: Path) -> None:
    """Raise InputError for a pipe, device or folder: it may have no end, and each node and site reads its traces anew."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path}: is no regular file: give a trace file with lines of numbers")


def _read_traces(document: dict[str, Any], source: str) -> None:
    """Replace the paths of trace files, which are relative to the network file's folder, with the files' content."""
    for kind in ("nodes", "sites"):
        tables = document.get(kind)
        for index, table in enumerate(tables if isinstance(tables, list) else []):
            for name in TRACES:
                if not isinstance(table, dict) or name not in table:
                    continue
                _require_path(table[name], f"{kind}[{index}].{name}", source)
                path = Path(source).parent / table[name]
                _require_file(path)
                text = toml_file.read_text(path, "trace file", "lines of numbers")
                trace = parse_trace(
                    text, str(path), (LOW_MBPS, HIGH_MBPS), HIGH_DELAY_MS, table.get("trace_end") != "hold"
                )
                table[name] = to_builtins(trace)


def _check_delay(part: Access | Link) -> None:
    delay_ms, jitter_ms = part.delay_ms, part.jitter_ms
    if part.reorder_percent and not delay_ms:
        raise ValueError("reorder_percent is given without delay_ms: give a delay, which some packets then do without")
    if jitter_ms > delay_ms:
        raise ValueError(f"jitter_ms is {jitter_ms:g}, above the delay of {delay_ms:g} ms: give at most delay_ms")
    if delay_ms + jitter_ms > HIGH_DELAY_MS:
        raise ValueError(
            f"jitter_ms is {jitter_ms:g} beside a delay of {delay_ms:g} ms: give at most {HIGH_DELAY_MS:g} ms together"
        )
    for trace in part.traces if isinstance(part, Access) else ():
        delays_ms = [step.delay_ms for step in trace.steps if step.delay_ms is not None] if trace is not None else []
        if delays_ms and not jitter_ms <= min(delays_ms) <= max(delays_ms) <= HIGH_DELAY_MS - jitter_ms:
            raise ValueError(
                f"jitter_ms is {jitter_ms:g} beside a trace's delays of {min(delays_ms):g} to {max(delays_ms):g} ms:"
                f" give at most the least of them, and {HIGH_DELAY_MS:g} ms together"
            )
