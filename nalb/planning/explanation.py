"""Explains a plan in words: the bytes that each node carries and why, and the servers that each tensor goes to."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from nalb.planning.distribution import Distribution
from nalb.planning.leaders import SitePlan
from nalb.planning.levels import lan_load_bytes, uplink_load_bytes, ways
from nalb.planning.nodes import Capacities, Node, Pair, completion_s, linear_load, loads_bytes, pairs_s
from nalb.planning.precisions import STEPS, PrecisionModel, Precisions
from nalb.planning.slices import Layout, size_bytes
from nalb.units import bytes_per_s_to_mbps

NOTHING_S = 0.0005  # less is no time
BOTTLENECK_PART = 0.999  # part of the slowest time: nodes above it set the pace


def explain(layout: Layout, plan: Distribution, nodes: Sequence[Node], capacities: Capacities | None) -> list[str]:
    """The explanation's lines: two for the plan, one or more per node with reasons, one for each capped pair that sets the pace,
    and one per tensor. Cost: O(fragments).

    capacities: for the nodes' times; None: not known.
    """
    probes = int(layout.is_probe.sum())
    lines = [
        f"{plan.scheme}: {plan.reason}",
        f"{layout.model_bytes} bytes in {len(layout.slices)} slices ({probes} of them probes) over "
        f"{sum(node.is_server for node in nodes)} servers",
    ]
    return lines + _node_lines(layout, plan, nodes, capacities) + _tensor_lines(layout, plan, nodes)


def explain_precisions(model: PrecisionModel, precisions: Precisions) -> list[str]:
    """A line for the exchange, and one for each worker. Cost: N times `exact`."""
    with_s, whole = model.exchange_s(precisions), Precisions.all_in(STEPS[0], model.nodes)
    lines = [
        f"all sums are answered in {precisions.answers}, since all ranks need the same bits: "
        f"the links need {with_s:.4g} s, and with {STEPS[0]} alone {model.exchange_s(whole):.4g} s"
    ]
    worth_s = model.worth_s(precisions).tolist()
    for node, precision, worth in zip(model.nodes, precisions.pushes, worth_s, strict=True):
        if node.is_worker:
            lines.append(push_reason(node.name, precision, worth))
    return lines


def push_reason(node: str, precision: str, worth_s: float) -> str:
    """Why a node pushes in this precision. worth_s: see PrecisionModel.worth_s."""
    if precision == STEPS[0]:
        return f"{node} pushes {precision}: fewer bytes there save too little"
    if worth_s < NOTHING_S:
        return f"{node} pushes {precision}, together with others: it alone saves nothing"
    return f"{node} pushes {precision}: with {STEPS[0]} the exchange would take {worth_s:.3f} s longer"


def _node_lines(layout: Layout, plan: Distribution, nodes: Sequence[Node], capacities: Capacities | None) -> list[str]:
    slices = Counter(plan.server_of_slice)
    probes = Counter(
        server for server, is_probe in zip(plan.server_of_slice, layout.is_probe.tolist(), strict=True) if is_probe
    )
    shares = plan.held_shares
    if (by_site := plan.by_site) is not None:
        return _site_lines(layout, plan, by_site, nodes, capacities)
    both = loads_bytes(nodes, shares, layout.model_bytes)
    fixed, _ = linear_load(nodes, layout.model_bytes)
    lines, slow_pairs, slowest_s = list[str](), dict[Pair, float](), 0.0
    if capacities is not None:
        slowest_s = BOTTLENECK_PART * completion_s(nodes, shares, layout.model_bytes, capacities)
        slow_pairs = {
            pair: took_s for pair, took_s in pairs_s(nodes, shares, capacities).items() if took_s >= slowest_s
        }
    for i, node in enumerate(nodes):
        line = f"{node.name}: sums {plan.shares_bytes[i]} bytes in {slices[i]} slices"
        if slices[i] and slices[i] == probes[i]:
            line += ", all probes, by which its link is measured"
        way = "each way" if both[0, i] == both[1, i] else f"out and {both[1, i]:.0f} in"
        line += f", carries {both[0, i]:.0f} bytes {way}"
        if capacities is not None:
            times_s = both / capacities.rates
            slower = int(times_s[1, i] > times_s[0, i])
            rate = capacities.limit[i] if both[0, i] == both[1, i] else capacities.rates[slower, i]
            own_s = (fixed / capacities.rates)[:, i].max()
            line += f", {times_s[slower, i]:.3f} s at {bytes_per_s_to_mbps(rate):g} Mbit/s"
            held_back = node.is_server and plan.target_bytes[i] == 0
            if held_back and any(i in pair for pair in slow_pairs):
                line += "; no share: a capped pair would take longer"
            elif held_back and fixed[0, i]:
                line += f"; no share: its own gradients alone take it {own_s:.3f} s"
            elif held_back:
                line += "; no share: the others finish sooner without it"
            if times_s[slower, i] >= slowest_s:
                line += "; sets the pace"
        lines.append(line)
    for (source, target), took_s in slow_pairs.items():
        lines.append(f"{nodes[source].name} -> {nodes[target].name}: a capped pair, {took_s:.3f} s; sets the pace")
    return lines


def _site_lines(
    layout: Layout, plan: Distribution, by_site: SitePlan, nodes: Sequence[Node], capacities: Capacities | None
) -> list[str]:
    """A line for each site, and one for each of its machines."""
    sites, led, owned = by_site.sites, by_site.led_shares, plan.held_shares
    crosses = uplink_load_bytes(sites, owned, layout.model_bytes)
    out, into = lan_load_bytes(sites, owned, led, layout.model_bytes)
    lines = []
    for site, members in enumerate(sites.members):
        line = f"site {sites.names[site]}: {crosses[site]:.0f} bytes cross each way"
        if capacities is not None and capacities.uplinks is not None:
            rate = float(ways(capacities.uplinks, capacities.rates)[site])
            line += f", {crosses[site] / rate:.3f} s at {bytes_per_s_to_mbps(rate):g} Mbit/s"
        lines.append(line)
        for i in members:
            for_site = f"{by_site.led_bytes[i]} bytes for its site and " if len(members) > 1 else ""
            sums = f"sums {for_site}{plan.shares_bytes[i]} bytes for all"
            lines.append(f"  {nodes[i].name}: {sums}, sends {out[i]:.0f} and gets {into[i]:.0f}")
    return lines


def _tensor_lines(layout: Layout, plan: Distribution, nodes: Sequence[Node]) -> list[str]:
    where: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for piece, server in zip(layout.slices, plan.server_of_slice, strict=True):
        for fragment in piece.fragments:
            where[fragment.tensor][server] += size_bytes(fragment.length, piece.dtype)
    lines = []
    for index, tensor in enumerate(layout.tensors):
        parts = sorted(where[index].items(), key=lambda item: (-item[1], item[0]))
        text = ", ".join(f"{nodes[server].name} {size / tensor.size_bytes:.0%}" for server, size in parts)
        lines.append(f"{tensor.name} ({tensor.size_bytes} bytes): {text or 'empty, goes nowhere'}")
    return lines
