"""A network's rates, delays and CPU quotas at a moment, as pure functions of the file and the elapsed time.

Each draw of [random] and [cpu_random] depends on the seed and the draw's index alone. So it is the same on every machine, however
long the run is, and whichever draw is computed first.
"""

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from netem.network import Network
from netem.network_tables import NetworkNode, Site
from netem.traces import Trace

NodeRates = dict[str, tuple[float, float]]  # node, or site -> (up_mbps, down_mbps); no site has a node's name
Delays = dict[str, tuple[float, float]]  # node or site whose trace says delays -> (ms on the way up, ms down)
PairCaps = dict[tuple[str, str], float]  # (src, dst) -> mbps
CpuQuotas = dict[str, float | None]  # node -> cores; None: not limited


@dataclass(frozen=True)
class Numbers:
    """The rates, caps and delays of all links at a moment."""

    rates: NodeRates  # of every node and site
    caps: PairCaps
    delays: Delays

    @classmethod
    def at(cls, network: Network, elapsed_s: float) -> "Numbers":
        """The file's numbers at elapsed_s after the start."""
        return cls(access_rates_at(network, elapsed_s), pair_caps_at(network, elapsed_s), delays_at(network, elapsed_s))


@dataclass(frozen=True)
class TimedChange:
    """All numbers that change at one moment."""

    at_s: float  # seconds after the start
    node_rates: NodeRates  # new rates of the nodes that change
    pair_caps: PairCaps  # new caps of the pairs that change
    cpu_quotas: CpuQuotas = field(default_factory=dict)  # new quotas of the nodes whose CPU changes
    site_rates: NodeRates = field(default_factory=dict)  # new rates of the sites that change
    delays: Delays = field(default_factory=dict)  # new delays of the links whose traces say delays


def rates_at(network: Network, elapsed_s: float) -> NodeRates:
    """Every node's (up_mbps, down_mbps) at a moment. Cost: O(nodes + changes)."""
    return _nodes_and_sites(network, access_rates_at(network, elapsed_s))[0]


def site_rates_at(network: Network, elapsed_s: float) -> NodeRates:
    """The (up_mbps, down_mbps) of every site's own link at a moment."""
    return _nodes_and_sites(network, access_rates_at(network, elapsed_s))[1]


def access_rates_at(network: Network, elapsed_s: float) -> NodeRates:
    """The (up_mbps, down_mbps) of every node and of every site at a moment."""
    every: list[NetworkNode | Site] = [*network.nodes, *network.sites]
    rates = {each.name: (each.up_mbps or 0.0, each.down_mbps or 0.0) for each in every}
    if network.random is not None:
        rates.update(_drawn_rates(network, int(max(elapsed_s, 0.0) / network.random.every_s + 1e-9)))
    for change in network.changes:
        if change.at_s <= elapsed_s and change.access is not None:
            up_mbps, down_mbps = rates[change.access]
            rates[change.access] = (change.up_mbps or up_mbps, change.down_mbps or down_mbps)
    for access in network.traced:
        up_mbps, down_mbps = (
            given if trace is None else trace.at(elapsed_s).mbps
            for trace, given in zip(access.traces, rates[access.name], strict=True)
        )
        rates[access.name] = (up_mbps, down_mbps)
    return rates


def delays_at(network: Network, elapsed_s: float) -> Delays:
    """The delays in ms, (up, down), of the links whose traces say delays, at a moment."""
    delays: Delays = {}
    for access in network.traced:
        said = [None if trace is None else trace.at(elapsed_s).delay_ms for trace in access.traces]
        if said != [None, None]:
            up_ms, down_ms = (access.delay_ms if one is None else one for one in said)
            delays[access.name] = (up_ms, down_ms)
    return delays


def pair_caps_at(network: Network, elapsed_s: float) -> PairCaps:
    """Every capped pair's Mbit/s at a moment."""
    caps = {(link.src, link.dst): link.mbps for link in network.links}
    for change in network.changes:
        if change.at_s <= elapsed_s and change.pair is not None and change.mbps is not None:
            caps[change.pair] = change.mbps
    return caps


def quotas_at(network: Network, elapsed_s: float) -> CpuQuotas:
    """Every node's CPU quota in cores at a moment; None for a node without one."""
    if network.cpu_random is not None:
        return _drawn_quotas(network, int(max(elapsed_s, 0.0) / network.cpu_random.every_s + 1e-9))
    quotas = {node.name: node.cpu_quota for node in network.nodes}
    quotas.update({change.node: change.cpu_quota for change in network.cpu_changes if change.at_s <= elapsed_s})
    return quotas


def highest_total_quota(network: Network) -> float:
    """The highest sum of all quotas at any time, in cores; with [cpu_random], the highest possible sum."""
    if network.cpu_random is not None:
        return len(network.nodes) * network.cpu_random.high_cpu_quota
    moments_s = [0.0, *(change.at_s for change in network.cpu_changes)]
    return max(sum(quota or 0.0 for quota in quotas_at(network, at_s).values()) for at_s in moments_s)


def timed_changes(network: Network) -> Iterator[TimedChange]:
    """Yield every change after the start, by time; endless with [random], [cpu_random] or a trace that loops.

    All that changes at one moment is one change.
    """
    listed = sorted({change.at_s for change in network.changes} | {change.at_s for change in network.cpu_changes})
    moments = heapq.merge(
        ((at_s, "listed", 0) for at_s in listed),
        _redraws("rates", network.random.every_s) if network.random is not None else (),
        _redraws("quotas", network.cpu_random.every_s) if network.cpu_random is not None else (),
        *(
            _steps(number, trace)
            for number, access in enumerate(network.traced)
            for trace in access.traces
            if trace is not None
        ),
    )
    for at_s, together in itertools.groupby(moments, key=lambda moment: moment[0]):
        at_once = [(what, number) for _, what, number in together]
        draws = dict(at_once)
        traced = {network.traced[number].name for what, number in at_once if what == "trace"}
        drawn = _drawn_rates(network, draws["rates"]) if "rates" in draws else {}
        quotas = _drawn_quotas(network, draws["quotas"]) if "quotas" in draws else {}
        named = traced | {
            change.access for change in network.changes if change.at_s == at_s and change.access is not None
        }
        pairs = {change.pair for change in network.changes if change.at_s == at_s and change.pair is not None}
        now_rates, now_caps = access_rates_at(network, at_s) | drawn, pair_caps_at(network, at_s)
        rates, site_rates = _nodes_and_sites(
            network, {name: now_rates[name] for name in now_rates if name in named or name in drawn}
        )
        quotas.update({change.node: change.cpu_quota for change in network.cpu_changes if change.at_s == at_s})
        caps = {pair: now_caps[pair] for pair in now_caps if pair in pairs}
        delays = {name: both for name, both in delays_at(network, at_s).items() if name in traced} if traced else {}
        yield TimedChange(at_s, rates, caps, quotas, site_rates, delays)


def _steps(number: int, trace: Trace) -> Iterator[tuple[float, str, int]]:
    return ((at_s, "trace", number) for at_s in trace.moments_s())


def _redraws(what: str, every_s: float) -> Iterator[tuple[float, str, int]]:
    return ((draw * every_s, what, draw) for draw in itertools.count(1))


def _nodes_and_sites(network: Network, rates: NodeRates) -> tuple[NodeRates, NodeRates]:
    """Split rates into those of nodes and those of sites."""
    sites = network.site_names()
    of_nodes = {name: both for name, both in rates.items() if name not in sites}
    return of_nodes, {name: both for name, both in rates.items() if name in sites}


def _drawn_rates(network: Network, draw: int) -> NodeRates:
    """The rates of the numbered draw, uniform on [low, high] and rounded to 0.01 Mbit/s.

    The links to the core draw in the file's order, nodes before sites.
    """
    redraws = network.random
    assert redraws is not None
    source = random.Random(f"{redraws.seed}/{draw}")  # text seeds are hashed with SHA-512: stable across versions
    rates: NodeRates = {}
    for name in [*(node.name for node in network.nodes if node.site is None), *network.site_names()]:
        mbps = min(
            max(round(source.uniform(redraws.low_mbps, redraws.high_mbps), 2), redraws.low_mbps), redraws.high_mbps
        )
        rates[name] = (mbps, mbps)
    return rates


def _drawn_quotas(network: Network, draw: int) -> CpuQuotas:
    """The quotas of the numbered draw, uniform on [low, high] and rounded to 0.001 cores, drawn in the file's order of nodes."""
    redraws = network.cpu_random
    assert redraws is not None
    source = random.Random(f"cpu {redraws.seed}/{draw}")  # other text than the rates', so that the two are independent
    low, high = redraws.low_cpu_quota, redraws.high_cpu_quota
    return {node.name: min(max(round(source.uniform(low, high), 3), low), high) for node in network.nodes}
