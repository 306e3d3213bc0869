"""Says what an iteration of a record asks of links, cores and workers, and how long each of these alone needs for it.

A link needs its load over its rate, by the cost model (nalb/planning/nodes.py). The load follows from the shares, or, where MXNet
routed, from the tensors as MXNet routes them. Rates are the estimates of the iteration; where there is none, the configured rates
less headers. A rate without proof is only hoped for: the link may be faster, so it needs at most the time that the exchange took.
Where a job has two ends only, what leaves one enters the other, and no iteration tells which of both holds it up: they count as one
way.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from nalb.events import ByNode, IterationEvent, Rates, SharedUplinkEvent
from nalb.feedback.window import delay_s
from nalb.planning.levels import uplink_load_bytes
from nalb.planning.nodes import Capacities, CoreTimes, Floats, Node, load_bytes, pair_weights
from nalb.planning.nodes import loads_bytes as planned_loads_bytes
from nalb.planning.shares import exact
from nalb.planning.sites import Sites, Uplinks
from nalb.planning.slices import Tensor, size_bytes, value_dtype
from nalb.planning.stock import OwnKeys, route
from nalb.reporting.record import Step, of_uplinks
from nalb.schemes import SCHEMES, Scheme
from nalb.units import GOODPUT_PART

BOTH = "both"  # directions
MEMBERS = ", "  # between the names of nodes that share an uplink
LEVEL_PART = 0.03  # relative difference: times nearer than this count as level
REFUTED_PART = 1.1  # of the exchange: what would need longer by its rate has another rate
NOT_NALBS = ("gloo",)  # series of a comparison that have a routing of their own and no record in SCHEMES


class LimitKind(Enum):
    """The kinds of things that an iteration waits for."""

    LINK = "link"
    UPLINK = "shared uplink"
    WAY = "way between two ends"
    PAIR = "capped pair"
    CORES = "cores"
    COMPUTING = "computing"
    PLANS = "waiting for plans"
    DELAY = "delay"

    @property
    def is_of_exchange(self) -> bool:
        """Whether the exchange of gradients waits for it."""
        return self not in (LimitKind.COMPUTING, LimitKind.PLANS, LimitKind.DELAY)


class RateSource(Enum):
    """How a time is known."""

    PROVEN = "measured"
    HOPED = "at most"  # the rate is a lower bound with optimism
    CONFIGURED = "configured"


@dataclass(frozen=True)
class Thing:
    """What an iteration waits for."""

    kind: LimitKind
    where: str = ""  # a node, a site, or a group of nodes
    direction: str = ""  # "up", "down" or BOTH; of a pair and a way: the receiving end

    @property
    def words(self) -> str:
        """It as people call it."""
        if self.kind is LimitKind.LINK:
            return f"{self.where}'s {'link (up and down)' if self.direction == BOTH else f'{self.direction}link'}"
        if self.kind is LimitKind.UPLINK:
            shares = "share" if MEMBERS in self.where else "shares"
            return f"the uplink that {self.where} {shares}" + ("" if self.direction == BOTH else f", {self.direction}")
        if self.kind in (LimitKind.PAIR, LimitKind.WAY):
            return f"the way from {self.where} to {self.direction}"
        if self.kind in (LimitKind.CORES, LimitKind.COMPUTING):
            return f"{self.where}'s {self.kind.value!s}"
        return str(self.kind.value)


Need = tuple[float, RateSource]  # seconds
Needs = dict[Thing, Need]


def exposed_s(step: Step) -> float:
    """The longest part of a worker's exchange after its last gradient; all of it where that is not known."""
    event = step.event
    parts = [
        end_s - min(max(computed_s, event.started_s.get(node, computed_s)), end_s)
        for node, computed_s in event.computed_s.items()
        if (end_s := event.finished_s.get(node)) is not None
    ]
    return max(parts, default=step.communication_s)


def needs(step: Step, groups: Sequence[SharedUplinkEvent] = ()) -> Needs:
    """What each thing alone needs in this iteration. groups: nodes that seem to share an uplink."""
    event = step.event
    found: Needs = {thing: (takes_s, RateSource.PROVEN) for thing, takes_s in _computing(step).items()}
    if event.plan_wait_s:
        found[Thing(LimitKind.PLANS)] = min(event.plan_wait_s.values()), RateSource.PROVEN
    if event.round_trip_s:
        # at most: connections that were busy before need no slow start
        found[Thing(LimitKind.DELAY)] = min(delay_s(event.round_trip_s), step.communication_s), RateSource.PROVEN
    shares = shares_of(step)
    if shares is not None:
        found |= _of_exchange(step, shares, groups)
    return found


def merged(found: Mapping[Thing, Need]) -> Needs:
    """The same with one entry for a link whose directions are level."""
    result = dict(found)
    for thing, up in found.items():
        down = found.get(replace(thing, direction="down"))
        if thing.direction == "up" and down is not None and _are_level(up, down):
            del result[thing], result[replace(thing, direction="down")]
            result[replace(thing, direction=BOTH)] = max(up, down, key=lambda one: one[0])
    return result


def _are_level(one: Need, other: Need) -> bool:
    return one[1] is other[1] and abs(one[0] - other[0]) <= LEVEL_PART * max(one[0], other[0])


def _computing(step: Step) -> dict[Thing, float]:
    """How long each worker computes before or while it exchanges, where that is known.

    Computing, the wait for the plan and the part of the exchange that computing does not hide follow each other and make up the
    worker's iteration. What it computes while it waits counts as waiting: no event tells the two apart.
    """
    event, found = step.event, {}
    for node, iteration_s in ({} if step.is_first else event.iteration_s).items():
        wait_s, finished_s = event.plan_wait_s.get(node, 0.0), event.finished_s.get(node)
        started_s, computed_s = event.started_s.get(node), event.computed_s.get(node)
        if computed_s is None or started_s is None or finished_s is None:
            takes_s = iteration_s - event.communication_s.get(node, 0.0) - wait_s
        else:
            ended_s = computed_s if computed_s - started_s > LEVEL_PART * iteration_s else started_s
            takes_s = ended_s - (finished_s - iteration_s) - wait_s
        found[Thing(LimitKind.COMPUTING, node)] = max(0.0, takes_s)
    return found


def _of_exchange(step: Step, shares: Floats, groups: Sequence[SharedUplinkEvent]) -> Needs:
    """What links, pairs, uplinks and cores need."""
    event, nodes = step.event, nodes_of(step)
    found: Needs = {}
    sites, of_node, of_site = sites_of(step), *loads_bytes(step, shares)
    out, into = of_node, of_node
    if sites is None:
        both = planned_loads_bytes(nodes, shares, float(shares.sum()))
        out, into = (dict(zip(of_node, one.tolist(), strict=True)) for one in both)
    found |= _of_links(LimitKind.UPLINK, of_site, of_site, _uplink_rates(event, "up"), _uplink_rates(event, "down"))
    found |= _of_links(LimitKind.LINK, out, into, _rates(event, "up"), _rates(event, "down"))
    if event.configured is not None and event.configured.site_of:
        found |= _of_declared_sites(event.configured, nodes, shares)
    ends = _two_ends(nodes, sites)
    if ends is not None:
        found = _as_ways(found, *ends)
    index = {node.name: place for place, node in enumerate(nodes)}
    for source, target, rate in _pairs(event, index):
        weights = pair_weights(nodes, (index[source], index[target]))
        carried = weights[0] * shares[index[source]] + weights[1] * shares[index[target]]
        found[Thing(LimitKind.PAIR, source, target)] = float(carried) / rate, RateSource.PROVEN
    for node, cores_s in event.cores_s.items():
        if cores_s:
            found[Thing(LimitKind.CORES, node)] = cores_s, RateSource.PROVEN
    declared = [] if event.configured is None else _declared_sides(event.configured)
    for group in groups:
        if set(group.nodes) not in declared:
            found |= _of_group(group, nodes, shares)
    return {thing: _within(need, step.communication_s) for thing, need in found.items()}


def _within(need: Need, exchange_s: float) -> Need:
    """The need, no longer than the exchange that it was a part of took, if its rate is hoped for or cannot be right."""
    takes_s, source = need
    if source is not RateSource.HOPED and takes_s <= REFUTED_PART * exchange_s:
        return need
    return min(takes_s, exchange_s), RateSource.HOPED


def _of_links(
    kind: LimitKind,
    out: Mapping[str, float],
    into: Mapping[str, float],
    up: Mapping[str, Need],
    down: Mapping[str, Need],
) -> Needs:
    """What both directions of links with these loads need. up, down: rates."""
    return {
        Thing(kind, name, direction): (loads[name] / rates[name][0], rates[name][1])
        for name in out
        for direction, loads, rates in (("up", out, up), ("down", into, down))
        if name in rates and loads[name] > 0
    }


def _two_ends(nodes: Sequence[Node], sites: Sites | None) -> tuple[str, str] | None:
    """The two ends of a job that has no more; a machine that is alone in its site stands for it."""
    if sites is None:
        return (nodes[0].name, nodes[1].name) if len(nodes) == 2 else None
    if sites.count != 2:
        return None
    one, other = (
        nodes[members[0]].name if len(members) == 1 else name
        for name, members in zip(sites.names, sites.members, strict=True)
    )
    return one, other


def _as_ways(found: Needs, one: str, other: str) -> Needs:
    """The same with the way from each end to the other in place of both ends' links."""
    result = {thing: need for thing, need in found.items() if thing.where not in (one, other)}
    by_end = {(thing.where, thing.direction): need for thing, need in found.items()}
    for source, target in ((one, other), (other, one)):
        ends = [by_end[end] for end in ((source, "up"), (target, "down")) if end in by_end]
        if ends:
            result[Thing(LimitKind.WAY, source, target)] = max(ends, key=lambda need: need[0])
    return result


def _of_group(group: SharedUplinkEvent, nodes: Sequence[Node], shares: Floats) -> Needs:
    """What crosses between a group of nodes and the others, over the uplink that they seem to share."""
    slower = min(group.up_bytes_per_s, group.down_bytes_per_s)
    thing = Thing(LimitKind.UPLINK, MEMBERS.join(group.nodes), BOTH)
    return {thing: (_crossing_bytes(group.nodes, nodes, shares) / slower, RateSource.PROVEN)} if slower > 0 else {}


def _members(configured: Rates, site: str) -> list[str]:
    """The nodes of a declared site."""
    return [name for name, of in configured.site_of.items() if of == site]


def _declared_sides(configured: Rates) -> list[set[str]]:
    """The nodes on either side of each uplink that the network file declares: who shares one is known."""
    nodes, found = set(configured.site_of), []
    for site in configured.uplinks:
        members = set(_members(configured, site))
        found += [members, nodes - members]
    return found


def _of_declared_sites(configured: Rates, nodes: Sequence[Node], shares: Floats) -> Needs:
    """What crosses the uplinks that the network file declares, where sums have one level, and so nothing measures uplinks."""
    found: Needs = {}
    for site, rates in configured.uplinks.items():
        members = _members(configured, site)
        for direction, rate in zip(("up", "down"), rates, strict=True):
            if len(members) > 1 and rate:
                takes_s = _crossing_bytes(members, nodes, shares) / (GOODPUT_PART * rate)
                found[Thing(LimitKind.UPLINK, site, direction)] = takes_s, RateSource.CONFIGURED
    return found


def _crossing_bytes(group: Collection[str], nodes: Sequence[Node], shares: Floats) -> float:
    """The bytes between these nodes and the others, in either direction, where sums have one level."""
    within = np.array([node.name in group for node in nodes])
    is_worker = np.array([node.is_worker for node in nodes])
    inner, outer = (is_worker & within).sum(), (is_worker & ~within).sum()
    return float(inner * shares[~within].sum() + outer * shares[within].sum())


# ---- what a record tells


def nodes_of(step: Step) -> list[Node]:
    """The job's nodes with their roles."""
    ready, workers = step.ready, step.event.communication_s
    names = list(workers) if ready is None else ready.nodes
    servers = names if ready is None or not ready.servers else ready.servers
    parts = {} if step.event.rounded is None else step.event.rounded.push_parts
    return [
        Node(name, name in workers, name in servers, parts.get(name, 1.0))
        for name in names
        if name in workers or name in servers
    ]


def sites_of(step: Step) -> Sites | None:
    """The sites, where sums have two levels."""
    if step.ready is None or not step.ready.sites:
        return None
    names = tuple(step.ready.sites.get(node.name, node.name) for node in nodes_of(step))
    sites = Sites(names, pushes_zeros=not step.ready.has_agents)
    return sites if sites.has_levels else None


def scheme_of(step: Step) -> Scheme | None:
    """The record of the iteration's scheme, whatever options its word has; None for one that is not nalb's."""
    return SCHEMES.get(re.split(r"[-+@]", step.event.scheme)[0])


def shares_of(step: Step) -> Floats | None:
    """Bytes that each node sums, shape (N,); None where the routing is not known."""
    event, nodes, scheme = step.event, nodes_of(step), scheme_of(step)
    told = np.array([event.shares.get(node.name) or 0.0 for node in nodes])
    if told.sum() > 0:
        return told
    if event.scheme in NOT_NALBS or (scheme is not None and scheme.ps_lite_kind):
        return None
    if step.ready is None or not step.ready.servers or step.layout is None or not step.layout.tensors:
        return None
    tensors = [Tensor(*row) for row in step.layout.tensors]
    if step.ready.has_agents:  # gloo's ring has every node sum an equal part, of values as they are
        model_bytes = sum(size_bytes(one.elements, value_dtype(one.dtype)) for one in tensors)
        return None if step.ready.sites else np.full(len(nodes), model_bytes / len(nodes))
    sizes, ranks = route(tensors, len(step.ready.servers), OwnKeys().of(tensors))  # of the first set of tensors
    of_rank = np.bincount(ranks, sizes, minlength=len(step.ready.servers))
    by_name = dict(zip(step.ready.servers, of_rank.tolist(), strict=True))
    return np.array([by_name.get(node.name, 0.0) for node in nodes])


def loads_bytes(step: Step, shares: Floats) -> tuple[dict[str, float], dict[str, float]]:
    """The bytes of each node in the direction in which it carries more, and by sites those of each site of several machines.

    By sites a node's bytes are those in its LAN; a machine that is alone in its site has its site's.
    """
    nodes, sites = nodes_of(step), sites_of(step)
    names, model_bytes = [node.name for node in nodes], float(shares.sum())
    if sites is None:
        return dict(zip(names, load_bytes(nodes, shares, model_bytes).tolist(), strict=True)), {}
    loads = {name: step.event.load_bytes.get(name) or 0.0 for name in names}
    crosses = dict(zip(sites.names, uplink_load_bytes(sites, shares, model_bytes).tolist(), strict=True))
    for place in np.flatnonzero(sites.machines == 1).tolist():
        loads[names[place]] = crosses.pop(sites.name_of_node[place])
    return loads, crosses


def _side(rates: Rates | None, direction: str) -> ByNode:
    return {} if rates is None else rates.up if direction == "up" else rates.down


def _rates(event: IterationEvent, direction: str) -> dict[str, Need]:
    """Each node's rate, bytes per second, where it is known, and how."""
    estimate, least, configured = (_side(one, direction) for one in (event.estimate, event.least, event.configured))
    if event.configured is not None and event.configured.site_of:  # there a node's rate is its part of an uplink
        sites = list(event.configured.site_of.values())
        configured = {
            name: rate for name, rate in configured.items() if sites.count(event.configured.site_of[name]) == 1
        }
    return _known(estimate, least, configured)


def _uplink_rates(event: IterationEvent, direction: str) -> dict[str, Need]:
    """Each site's rate, as `_rates` has each node's."""
    told = (event.estimate, event.least, event.configured)
    return _known(*(_side(of_uplinks(one), direction) for one in told))


def _known(estimate: ByNode, least: ByNode, configured: ByNode) -> dict[str, Need]:
    found = {
        name: (GOODPUT_PART * rate, RateSource.CONFIGURED) for name, rate in configured.items() if rate and rate > 0
    }
    for name, rate in estimate.items():
        if rate and rate > 0:
            bound = least.get(name, rate) or 0.0
            found[name] = rate, RateSource.PROVEN if bound >= 0.999 * rate else RateSource.HOPED
    return found


def _pairs(event: IterationEvent, known: Mapping[str, int]) -> list[tuple[str, str, float]]:
    """The capped pairs of known nodes: those found, else those configured, less headers."""
    if event.estimate is not None and any(event.estimate.up.values()):
        pairs = event.estimate.pairs or []
    else:
        configured = None if event.configured is None else event.configured.pairs
        pairs = [(source, target, GOODPUT_PART * rate) for source, target, rate in configured or []]
    return [(a, b, rate) for a, b, rate in pairs if a in known and b in known and a != b and rate > 0]


# ---- the least time


@dataclass(frozen=True)
class StepModel:
    """The cost model of an iteration: what a plan of least time would take, by all that is known then."""

    nodes: Sequence[Node]
    model_bytes: float
    capacities: Capacities
    follows: bool  # the scheme plans by what is known, and would plan anew if that changed

    @classmethod
    def of(cls, step: Step) -> "StepModel | None":
        """None where not all is known."""
        event, shares, nodes, sites = step.event, shares_of(step), nodes_of(step), sites_of(step)
        names = [node.name for node in nodes]
        up, down = (_rates(event, direction) for direction in ("up", "down"))
        if shares is None or not all(name in up and name in down for name in names):
            return None
        uplinks = None
        if sites is not None:
            of_site = [_uplink_rates(event, direction) for direction in ("up", "down")]
            rates = [[one[site][0] if site in one else np.inf for site in sites.names] for one in of_site]
            uplinks = Uplinks(sites, *map(np.array, rates))
        index = {name: place for place, name in enumerate(names)}
        pairs = {(index[a], index[b]): rate for a, b, rate in _pairs(event, index)} if sites is None else {}
        capacities = Capacities(
            np.array([up[name][0] for name in names]),
            np.array([down[name][0] for name in names]),
            pairs,
            _core_times(event, names, shares),
            uplinks,
        )
        scheme = scheme_of(step)
        # Untimed shares of a scheme that follows estimates are equal ones.
        plans = event.measured is not False and (scheme is None or scheme.follows_estimates)
        follows = bool(event.shares) and (plans or (scheme is not None and scheme.needs_configured))
        return cls(nodes, float(shares.sum()), capacities, follows)

    def least_s(self, faster: Thing | None = None) -> float:
        """The least time of an exchange in seconds; `faster`: as if this one thing were twice as fast."""
        capacities = self.capacities if faster is None else self._with_faster(faster)
        return exact(self.nodes, self.model_bytes, capacities)[1]

    def _with_faster(self, thing: Thing) -> Capacities:
        given, names = self.capacities, [node.name for node in self.nodes]
        if thing.kind is LimitKind.WAY:
            return self._doubled({"up": thing.where, "down": thing.direction})
        if thing.kind in (LimitKind.LINK, LimitKind.UPLINK):
            return self._doubled({way: thing.where for way in ("up", "down") if thing.direction in (way, BOTH)})
        if thing.kind is LimitKind.PAIR:
            pair = names.index(thing.where), names.index(thing.direction)
            return replace(given, pairs={**given.pairs, pair: 2 * given.pairs[pair]})
        if thing.kind is LimitKind.CORES and given.cores is not None:
            factor = np.where(np.array(names) == thing.where, 0.5, 1.0)
            return replace(given, cores=CoreTimes(given.cores.fixed_s * factor, given.cores.s_per_byte * factor))
        return given

    def _doubled(self, ends: Mapping[str, str]) -> Capacities:
        """The capacities with these directions of these nodes or sites doubled. ends: by direction."""
        given, names, uplinks = self.capacities, np.array([node.name for node in self.nodes]), self.capacities.uplinks
        result = replace(
            given, **{way: getattr(given, way) * np.where(names == end, 2.0, 1.0) for way, end in ends.items()}
        )
        if uplinks is None:
            return result
        sites = uplinks.sites  # a machine that is alone in its site stands for it
        called = np.array(
            [
                names[members[0]] if len(members) == 1 else name
                for name, members in zip(sites.names, sites.members, strict=True)
            ]
        )
        shared = {way: getattr(uplinks, way) * np.where(called == end, 2.0, 1.0) for way, end in ends.items()}
        return replace(result, uplinks=replace(uplinks, **shared))


def _core_times(event: IterationEvent, names: Sequence[str], shares: Floats) -> CoreTimes | None:
    """Cores whose time grows with the share from half of the present one: the record has only the whole."""
    told = [event.cores_s.get(name) for name in names]
    if any(value is None for value in told):
        return None
    whole = np.array(told, dtype=np.float64)
    per_byte = np.divide(whole / 2, shares, out=np.zeros(len(shares)), where=shares > 0)
    return CoreTimes(whole - per_byte * shares, per_byte)
