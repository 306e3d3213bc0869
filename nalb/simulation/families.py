"""Draws random networks by family and seed, the same ones for simulations, tests and `nalb net random`.

    family        rates in Mbit/s
    even          20 to 220, up and down alike
    near          150 to 220, up and down alike
    heavy         10 to 1,000, log-uniform, up and down alike
    asymmetric    20 to 220, up and down drawn apart
    adsl          down 50 to 220, up 0.15 to 1 of it
    capped        60 to 220, up and down drawn apart; one to three directed pairs at 0.1 to 0.6 of the slower of their two ends
    changing      as even; every 20 to 60 s either all rates are drawn anew, or one node's rates halve or double
    roles         as even; at least one node each is worker only, server only, and both
    shared-cores  as even; CPU quotas take half to all of the machine's cores together, and each is at most 5 times another
    sites         sites of two to four machines, the last site with the rest; sites' links as even; machines 400 in their LANs

Every draw is uniform unless the table says otherwise. Rates are rounded to 0.01 Mbit/s, and a network file holds them exactly.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nalb.errors import InputError, did_you_mean
from nalb.planning.nodes import Capacities, Floats, Node, Pair
from nalb.planning.sites import Sites, Uplinks
from nalb.units import bytes_per_s_to_mbps, mbps_to_bytes_per_s

LOW_MBPS, HIGH_MBPS = 20.0, 220.0  # of an even network: Cai et al., section 4.1, who give the upper end only
LOW_NODES, HIGH_NODES = 2, 200  # limits of a network file
FEWEST_NODES = {  # of the families that take more than two
    "roles": 3,  # a worker, a server and both
    "sites": 3,  # two sites, one of them with several machines
}
LAN_MBPS = 400.0  # rate of a machine in its site's LAN: well above the sites' links
LOW_MACHINES, HIGH_MACHINES = 2, 4  # of a site
MOST_SITES = 50  # of a network file
HIGH_SEED = 99_999_999  # a network's name has room for eight digits
NAME_LENGTH = 15  # characters of a network's name in a network file, at most
LOW_SCALE, HIGH_SCALE = 0.01, 34.0  # the slowest capped pair keeps 0.06 Mbit/s, the fastest heavy node has tc's 34,000
LOW_PERIOD_S, HIGH_PERIOD_S = 20.0, 60.0  # from one change to the next
LAST_CHANGE_S = 1800.0  # a changing network does not change later
MOST_CAPPED_PAIRS = 3
LOW_QUOTA, HIGH_CORES = 0.01, 1024.0  # least quota of a node, and most cores of a machine: limits of network files

Rates = tuple[Floats, Floats]  # up and down of each node, Mbit/s, shape (N,) each
Draw = Callable[[np.random.Generator, int], Rates]


@dataclass(frozen=True, eq=False)
class DrawnNetwork:
    """One network of a family."""

    name: str  # of the network file: the family, as far as it fits, and the seed
    command: str  # `nalb net random` with the flags that draw it
    nodes: tuple[Node, ...]  # n0, n1, ... with their roles
    capacities: Capacities  # at 0 s
    changes: tuple[
        tuple[float, Capacities], ...
    ] = ()  # (seconds after the start, what the network carries from then on)
    quotas: tuple[float, ...] | None = None  # cores of each node; None: not limited


def _alike(source: np.random.Generator, count: int, low: float = LOW_MBPS, high: float = HIGH_MBPS) -> Rates:
    rates = source.uniform(low, high, count)
    return rates, rates


def _apart(source: np.random.Generator, count: int, low: float = LOW_MBPS, high: float = HIGH_MBPS) -> Rates:
    return source.uniform(low, high, count), source.uniform(low, high, count)


def _heavy(source: np.random.Generator, count: int) -> Rates:
    rates = 10 ** source.uniform(1, 3, count)
    return rates, rates


def _adsl(source: np.random.Generator, count: int) -> Rates:
    down = source.uniform(50, 220, count)
    return down * source.uniform(0.15, 1, count), down


def _lan(_source: np.random.Generator, count: int) -> Rates:
    return np.full(count, LAN_MBPS), np.full(count, LAN_MBPS)


_RATES: Mapping[str, Draw] = {
    "even": _alike,
    "near": partial(_alike, low=150.0),
    "heavy": _heavy,
    "asymmetric": _apart,
    "adsl": _adsl,
    "capped": partial(_apart, low=60.0),
    "changing": _alike,
    "roles": _alike,
    "shared-cores": _alike,
    "sites": _lan,
}
FAMILIES = tuple(_RATES)
# The families in which each node has a link of its own to the core.
STAR_FAMILIES = tuple(family for family in FAMILIES if family != "sites")


def draw_network(
    family: str, num_nodes: int, seed: int, scale: float = 1.0, cores: float | None = None
) -> DrawnNetwork:
    """The network of a family that this seed draws; the same arguments give the same network on every machine.

    scale: factor of all rates. cores: of the machine that the nodes of shared-cores share; other families ignore it. Raises
    InputError.
    """
    _check(family, num_nodes, seed, scale)
    source = np.random.default_rng([seed, num_nodes, *family.encode()])
    up, down = _RATES[family](source, num_nodes)
    nodes = _nodes(source, num_nodes) if family == "roles" else tuple(Node(f"n{i}") for i in range(num_nodes))
    pairs = _capped_pairs(source, up, down) if family == "capped" else {}
    changes = _changes(source, up) if family == "changing" else []
    quotas = _quotas(source, num_nodes, cores) if family == "shared-cores" else None
    timed = tuple((at_s, _capacities(rates, rates, {}, scale)) for at_s, rates in changes)
    uplinks = _uplinks(source, num_nodes, scale) if family == "sites" else None
    name = f"{family[: NAME_LENGTH - 1 - len(str(seed))]}-{seed}"
    command = f"nalb net random --family {family} --nodes {num_nodes} --seed {seed}"
    command += f" --scale {scale!r}" if scale != 1 else ""
    command += f" --cores {cores!r}" if quotas else ""
    carried = replace(_capacities(up, down, pairs, scale), uplinks=uplinks)
    return DrawnNetwork(name, command, nodes, carried, timed, quotas)


def uniform_network(num_nodes: int, low_mbps: float, high_mbps: float, seed: int) -> tuple[list[Node], Capacities]:
    """Nodes n0, n1, ..., each worker and server, with uniform rates from low to high, up and down alike. Raises InputError.

    The rates are not rounded, and their number and size have no limits, since no network file is made of them.
    """
    rates = np.random.default_rng(seed).uniform(low_mbps, high_mbps, num_nodes).tolist()
    carried = [mbps_to_bytes_per_s(rate) for rate in rates]
    return [Node(f"n{i}") for i in range(num_nodes)], Capacities.from_lists(carried, carried)


def network_text(network: DrawnNetwork) -> str:
    """The network file of a drawn network, a line for each node, capped pair and change (docs/network-files.md)."""

    def mbps(rate_bytes_per_s: float) -> float:
        return round(bytes_per_s_to_mbps(rate_bytes_per_s), 2)

    def table(name: str, rows: Iterable[str]) -> list[str]:
        lines = [f"    {{ {row} }}," for row in rows]
        return [f"{name} = [", *lines, "]"] if lines else []

    names, carried = [node.name for node in network.nodes], network.capacities
    nodes, changes, sites = [], [], []
    if (uplinks := carried.uplinks) is not None:
        for k, site in enumerate(uplinks.sites.names):
            sites.append(f'name = "{site}", up_mbps = {mbps(uplinks.up[k])}, down_mbps = {mbps(uplinks.down[k])}')
    for i, node in enumerate(network.nodes):
        row = f'name = "{names[i]}", up_mbps = {mbps(carried.up[i])}, down_mbps = {mbps(carried.down[i])}'
        row += f', site = "{uplinks.sites.name_of_node[i]}"' if uplinks else ""
        row += f", cpu_quota = {network.quotas[i]}" if network.quotas else ""
        row += "" if node.is_worker else ", worker = false"
        nodes.append(row + ("" if node.is_server else ", server = false"))
    pairs = sorted(carried.pairs.items())
    links = [f'src = "{names[i]}", dst = "{names[j]}", mbps = {mbps(cap)}' for (i, j), cap in pairs]
    for at_s, after in network.changes:
        for i in np.flatnonzero((after.up != carried.up) | (after.down != carried.down)).tolist():
            rates = f"up_mbps = {mbps(after.up[i])}, down_mbps = {mbps(after.down[i])}"
            changes.append(f'at_s = {at_s}, node = "{names[i]}", {rates}')
        carried = after
    lines = [f"# {network.command}", f'name = "{network.name}"', *table("sites", sites), *table("nodes", nodes)]
    return "\n".join([*lines, *table("links", links), *table("changes", changes)]) + "\n"


def _check(family: str, num_nodes: int, seed: int, scale: float) -> None:
    if family not in FAMILIES:
        raise InputError(
            f"family {family!r} is unknown: {did_you_mean(family, FAMILIES)}choose one of {', '.join(FAMILIES)}"
        )
    fewest = FEWEST_NODES.get(family, LOW_NODES)
    if not fewest <= num_nodes <= HIGH_NODES:
        raise InputError(f"family {family} of {num_nodes} nodes: give {fewest} to {HIGH_NODES}")
    if not 0 <= seed <= HIGH_SEED:
        raise InputError(f"seed {seed}: give a whole number from 0 to {HIGH_SEED}")
    if not LOW_SCALE <= scale <= HIGH_SCALE:
        raise InputError(f"scale {scale:g}: give {LOW_SCALE:g} to {HIGH_SCALE:g}")


def _nodes(source: np.random.Generator, count: int) -> tuple[Node, ...]:
    """Nodes with random roles. Each of the three roles occurs, so at least two nodes are workers and two are servers."""
    kinds = [(True, False), (False, True), (True, True)]
    chosen = [0, 1, 2, *source.integers(3, size=count - FEWEST_NODES["roles"]).tolist()]
    order = source.permutation(count).tolist()
    return tuple(Node(f"n{i}", *kinds[chosen[place]]) for i, place in enumerate(order))


def _uplinks(source: np.random.Generator, count: int, scale: float) -> Uplinks:
    """Two to MOST_SITES sites s0, s1, ... of neighbouring nodes, and the rates of their links."""
    machines: list[int] = []
    while (left := count - sum(machines)) > 0:
        most = HIGH_MACHINES if machines else min(HIGH_MACHINES, count - 1)
        # with fewer machines the others would need more sites than a file may have
        fewest = left - HIGH_MACHINES * (MOST_SITES - len(machines) - 1)
        machines.append(min(max(int(source.integers(LOW_MACHINES, most + 1)), fewest), left))
    names = [f"s{k}" for k, size in enumerate(machines) for _ in range(size)]
    up, down = _alike(source, len(machines))
    carried = _capacities(up, down, {}, scale)
    return Uplinks(Sites(tuple(names)), carried.up, carried.down)


def _capped_pairs(source: np.random.Generator, up: Floats, down: Floats) -> dict[Pair, float]:
    """The caps in Mbit/s of one to three directed pairs; two nodes have only two pairs."""
    every = [(i, j) for i in range(len(up)) for j in range(len(up)) if i != j]
    count = min(int(source.integers(1, MOST_CAPPED_PAIRS + 1)), len(every))
    chosen = [every[place] for place in source.choice(len(every), count, replace=False).tolist()]
    return {(i, j): float(source.uniform(0.1, 0.6) * min(up[i], down[j])) for i, j in chosen}


def _changes(source: np.random.Generator, rates: Floats) -> list[tuple[float, Floats]]:
    """(seconds, rates of the nodes from then on, up and down alike, Mbit/s); a rate stays within the family's range."""
    changes: list[tuple[float, Floats]] = []
    at_s = 0.0
    while (at_s := round(at_s + source.uniform(LOW_PERIOD_S, HIGH_PERIOD_S), 1)) <= LAST_CHANGE_S:
        redrawn, _ = _alike(source, len(rates))
        one, coin = source.integers(len(rates)), source.random()
        if source.random() < 0.5:
            rates = redrawn
        else:
            rates = rates.copy()
            doubles = rates[one] < 2 * LOW_MBPS or (coin < 0.5 and rates[one] <= HIGH_MBPS / 2)
            rates[one] *= 2 if doubles else 0.5
        changes.append((at_s, rates))
    return changes


def _quotas(source: np.random.Generator, count: int, cores: float | None) -> tuple[float, ...]:
    """The cores of each node, rounded down to 0.001, so that they never add up to more than there are. Raises InputError."""
    if cores is None or not 0 < cores <= HIGH_CORES:
        raise InputError(f"family shared-cores on {cores} cores: give how many the nodes share, at most {HIGH_CORES:g}")
    weights = source.uniform(0.2, 1, count)
    quotas = np.floor(1000 * cores * source.uniform(0.5, 1) * weights / weights.sum()) / 1000
    if quotas.min() < LOW_QUOTA:
        raise InputError(
            f"family shared-cores of {count} nodes on {cores:g} cores: a node gets {quotas.min():g} cores, below {LOW_QUOTA}:"
            " give fewer nodes or more cores"
        )
    return tuple(quotas.tolist())


def _capacities(up: Floats, down: Floats, pairs: Mapping[Pair, float], scale: float) -> Capacities:
    """The capacities of these rates in Mbit/s, scaled and rounded to 0.01 Mbit/s."""

    def carried(mbps: float) -> float:
        return mbps_to_bytes_per_s(round(mbps * scale, 2))

    caps = {pair: carried(mbps) for pair, mbps in pairs.items()}
    return Capacities.from_lists(map(carried, up.tolist()), map(carried, down.tolist()), caps)
