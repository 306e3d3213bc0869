"""A plan in words: what each node carries and why, and which tensor goes to which server."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from nalb.planning.distribution import Distribution
from nalb.planning.nodes import Capacities, Node, linear_load, load_bytes
from nalb.planning.slices import ITEM_BYTES, Layout
from nalb.units import bytes_per_s_to_mbps

BOTTLENECK_PART = 0.999  # of the slowest time: nodes above it set the pace


def explain(layout: Layout, plan: Distribution, nodes: Sequence[Node], capacities: Capacities | None) -> list[str]:
    """Lines of text: the plan, a line per node with its reason, a line per tensor. Cost: O(fragments)."""
    probes = int(layout.is_probe.sum())
    lines = [
        f"{plan.scheme}: {plan.reason}",
        f"{layout.model_bytes} bytes in {len(layout.slices)} slices ({probes} of them probes) over "
        f"{sum(node.is_server for node in nodes)} servers",
    ]
    return lines + _node_lines(layout, plan, nodes, capacities) + _tensor_lines(layout, plan, nodes)


def _node_lines(layout: Layout, plan: Distribution, nodes: Sequence[Node], capacities: Capacities | None) -> list[str]:
    slices = Counter(plan.server_of_slice)
    shares = np.array(plan.shares_bytes, dtype=np.float64)
    loads = load_bytes(nodes, shares, layout.model_bytes)
    fixed, _ = linear_load(nodes, layout.model_bytes)
    lines = []
    for i, node in enumerate(nodes):
        line = f"{node.name}: sums {plan.shares_bytes[i]} bytes in {slices[i]} slices, carries {loads[i]:.0f} each way"
        if capacities is not None:
            limit, slowest = capacities.limit, float((loads / capacities.limit).max())
            line += f", {loads[i] / limit[i]:.3f} s at {bytes_per_s_to_mbps(limit[i]):g} Mbit/s"
            held_back = node.is_server and plan.target_bytes[i] == 0
            if held_back and fixed[i]:
                line += f"; no share: its own gradients alone take it {fixed[i] / limit[i]:.3f} s"
            elif held_back:
                line += "; no share: the others finish sooner without it"
            if loads[i] / limit[i] >= BOTTLENECK_PART * slowest:
                line += "; sets the pace"
        lines.append(line)
    return lines


def _tensor_lines(layout: Layout, plan: Distribution, nodes: Sequence[Node]) -> list[str]:
    where: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for piece, server in zip(layout.slices, plan.server_of_slice, strict=True):
        for fragment in piece.fragments:
            where[fragment.tensor][server] += fragment.length * ITEM_BYTES[piece.dtype]
    lines = []
    for index, tensor in enumerate(layout.tensors):
        parts = sorted(where[index].items(), key=lambda item: (-item[1], item[0]))
        text = ", ".join(f"{nodes[server].name} {size / tensor.size_bytes:.0%}" for server, size in parts)
        lines.append(f"{tensor.name} ({tensor.size_bytes} bytes): {text or 'empty, goes nowhere'}")
    return lines
