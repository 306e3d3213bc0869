"""A network as a checked file describes it: its tables, checked against each other."""

import math
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from nalb.units import mbps_to_bytes_per_s
from netem.network_tables import (
    HIGH_DELAY_MS,
    Change,
    CongestionControl,
    CpuChange,
    CpuRedraws,
    Flag,
    Link,
    Name,
    NetworkNode,
    RandomRedraws,
    Seed,
    Site,
)

HIGH_QUEUE_BYTES = 2**32 - 1  # tc's limits are 32-bit
HIGH_ROUND_TRIP_MS = 4 * HIGH_DELAY_MS
MAX_NODES = 200  # addresses 10.77.0.1 to 10.77.0.200; the hub is 10.77.0.254
MAX_SITES = 50  # their bridges are 10.77.0.201 to 10.77.0.250


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
