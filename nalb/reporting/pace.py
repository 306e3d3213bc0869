"""Says what set the pace of iterations: how long each link, pair, site, core, worker and wait alone needs, and what twice the speed
of one of them would save. Pure functions of a record.

A link needs its load over its rate, by the cost model (nalb/planning/nodes.py). The load follows from the shares, or, where MXNet
routed, from the tensors as MXNet routes them. Rates are the estimates of the iteration; where there is none, the configured rates
less headers. A rate without proof is only hoped for: the link may be faster. So it needs at most the time that the exchange took,
and links whose rates are proven come before it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from statistics import median

import numpy as np

from nalb.events import ByNode, IterationEvent, Rates, SharedUplinkEvent
from nalb.feedback.window import delay_s
from nalb.planning.levels import uplink_load_bytes
from nalb.planning.nodes import Capacities, CoreTimes, Floats, Node, load_bytes, pair_weights
from nalb.planning.shares import exact
from nalb.planning.sites import Sites, Uplinks
from nalb.planning.slices import Tensor
from nalb.planning.stock import route
from nalb.reporting.record import Step, Timeline
from nalb.reporting.run_file import WARM_UP
from nalb.schemes import SCHEMES
from nalb.units import GOODPUT_PART

LEVEL_PART = 0.03  # relative difference: times nearer than this count as level
EXPLAINED_PART = 0.85  # of the exchange: a proven link that needs this much comes before those that are only hoped for
NOT_NALBS = ("gloo",)  # series of a comparison that have a routing of their own and no record in SCHEMES
BOTH = "both"


class LimitKind(Enum):
    """The kinds of things that an iteration waits for."""

    LINK = "link"
    UPLINK = "shared uplink"
    PAIR = "capped pair"
    CORES = "cores"
    COMPUTING = "computing"
    PLANS = "waiting for plans"
    DELAY = "delay"

    @property
    def is_of_exchange(self) -> bool:
        """Whether the exchange of gradients waits for it."""
        return self in (LimitKind.LINK, LimitKind.UPLINK, LimitKind.PAIR, LimitKind.CORES)


class Source(Enum):
    """Where a limit's time comes from."""

    PROVEN = "measured"
    HOPED = "at most"  # the rate is a lower bound with optimism
    CONFIGURED = "configured"


@dataclass(frozen=True)
class Thing:
    """What an iteration waits for."""

    kind: LimitKind
    where: str = ""  # a node, a site, or a group of nodes
    direction: str = ""  # "up", "down" or BOTH; of a pair: the receiving node

    @property
    def words(self) -> str:
        """It as people call it."""
        if self.kind is LimitKind.LINK:
            return f"{self.where}'s {'link, up and down' if self.direction == BOTH else f'{self.direction}link'}"
        if self.kind is LimitKind.UPLINK:
            return f"the uplink that {self.where} shares" + ("" if self.direction == BOTH else f", {self.direction}")
        if self.kind is LimitKind.PAIR:
            return f"the way from {self.where} to {self.direction}"
        if self.kind in (LimitKind.CORES, LimitKind.COMPUTING):
            return f"{self.where}'s {self.kind.value!s}"
        return str(self.kind.value)


@dataclass(frozen=True)
class Limit:
    """One thing, and what it means for an iteration. Times in seconds."""

    thing: Thing
    takes_s: float  # what it needs alone, each iteration
    doubled_s: float  # what an iteration would take if this alone were twice as fast
    source: Source


@dataclass(frozen=True)
class Pace:
    """What set the pace of one scheme's iterations, or of the last of them."""

    scheme: str
    iterations: int  # how many count
    iteration_s: float  # median, from the slowest worker's end to the next one's
    exchange_s: float  # median of the slowest worker's time from first push to last pull
    exposed_s: float  # median: the part of the exchange that computing does not hide
    limits: tuple[Limit, ...]  # from what sets the pace downwards
    level: int  # how many of the first limits need as long as the first one, within LEVEL_PART
    unexplained_s: float  # of an iteration: what neither computing, plans, delay nor the slowest link explains
    are_loads_known: bool  # False: the scheme's routing is not known, so that no link can be named

    @property
    def sentence(self) -> str:
        """What sets the pace, for people; empty where nothing is known."""
        if not self.limits:
            return ""
        first = self.limits[0].thing
        if self.level > 1:
            names = [limit.thing.words for limit in self.limits[: self.level]]
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            return f"{shown} set the pace alike"
        plural = first.kind is LimitKind.CORES
        return f"{first.words} set{'' if plural else 's'} the pace"


def paces(timeline: Timeline, last: int | None = None) -> list[Pace]:
    """The pace of each scheme's iterations after the warm-up, in the order of first iterations.

    last: only so many of the newest iterations of each; None: all.
    """
    ordered = timeline.ordered()
    before = {later.place: earlier for earlier, later in pairwise(ordered)}
    found = []
    for scheme, steps in timeline.steps.items():
        # an iteration that follows another scheme's also has the wait for its turn in it
        in_turn = [one for one in steps if _follows(one, before.get(one.place))]
        chosen = (in_turn[max(0, WARM_UP - 1) :] or in_turn or steps)[-(last or len(steps)) :]
        found.append(pace_of(scheme, chosen, timeline.shared_uplinks))
    return found


def _follows(step: Step, before: Step | None) -> bool:
    return before is not None and before.event.scheme == step.event.scheme and before.ready is step.ready


def pace_of(scheme: str, steps: Sequence[Step], shared: Iterable[SharedUplinkEvent] = ()) -> Pace:
    """What set the pace of these iterations, of which there must be one. shared: uplinks that were noticed."""
    groups = list({tuple(one.nodes): one for one in shared}.values())
    needs: defaultdict[Thing, list[float]] = defaultdict(list)
    for step in steps:
        for thing, (takes_s, _) in _needs(step, groups).items():
            needs[thing].append(takes_s)
    last = steps[-1]
    sources = {thing: source for thing, (_, source) in _needs(last, groups).items()}
    times = {
        thing: median(values) for thing, values in needs.items() if thing in sources and 2 * len(values) > len(steps)
    }
    iteration_s, exchange_s = (median(values) for values in zip(*map(_times_s, steps), strict=True))
    exposed_s = median(map(_exposed_s, steps))
    doubled = _doubled(last, times, iteration_s, exchange_s, exposed_s)
    limits = [Limit(thing, takes_s, doubled[thing], sources[thing]) for thing, takes_s in times.items() if takes_s > 0]
    ranked, level = _ranked(limits)
    rest_s = sum(max((one.takes_s for one in limits if one.thing.kind is kind), default=0.0)
                 for kind in (LimitKind.COMPUTING, LimitKind.PLANS, LimitKind.DELAY))  # fmt: skip
    links_s = max((one.takes_s for one in limits if one.thing.kind.is_of_exchange), default=0.0)
    return Pace(
        scheme, len(steps), iteration_s, exchange_s, exposed_s, ranked, level,
        max(0.0, iteration_s - rest_s - min(links_s, exposed_s)), _shares(last) is not None,
    )  # fmt: skip


def _ranked(limits: Iterable[Limit]) -> tuple[tuple[Limit, ...], int]:
    """The limits from the greatest time downwards, those that are only hoped for behind proven ones, and how many are level."""

    def weight_s(limit: Limit) -> float:
        return limit.takes_s * (EXPLAINED_PART if limit.source is Source.HOPED else 1.0)

    ranked = sorted(limits, key=lambda one: -weight_s(one))
    if not ranked:
        return (), 0
    enough_s = (1 - LEVEL_PART) * weight_s(ranked[0])
    level = [one for one in ranked if weight_s(one) >= enough_s]
    level.sort(key=lambda one: one.doubled_s)
    return (*level, *ranked[len(level) :]), len(level)


# ---- one iteration


def _times_s(step: Step) -> tuple[float, float]:
    """(iteration, exchange) in seconds, of the slowest worker."""
    return max(step.event.at_s - step.begin_s, step.communication_s), step.communication_s


def _exposed_s(step: Step) -> float:
    """The longest part of a worker's exchange after its last gradient; all of it where that is not known."""
    event = step.event
    parts = [
        event.finished_s[node] - min(max(computed_s, event.started_s[node]), event.finished_s[node])
        for node, computed_s in event.computed_s.items()
    ]
    return max(parts, default=step.communication_s)


def _needs(step: Step, groups: Sequence[SharedUplinkEvent]) -> dict[Thing, tuple[float, Source]]:
    """What each thing alone needs in this iteration, in seconds, and how that is known."""
    event = step.event
    found = {thing: (takes_s, Source.PROVEN) for thing, takes_s in _computing(event).items()}
    if event.plan_wait_s:
        found[Thing(LimitKind.PLANS)] = min(event.plan_wait_s.values()), Source.PROVEN
    if event.round_trip_s:
        found[Thing(LimitKind.DELAY)] = delay_s(event.round_trip_s), Source.PROVEN
    shares = _shares(step)
    if shares is None:
        return found
    nodes, model_bytes = _nodes(step), float(shares.sum())
    sites = _sites(step)
    names = [node.name for node in nodes]
    if sites is None:
        loads = dict(zip(names, load_bytes(nodes, shares, model_bytes).tolist(), strict=True))
    else:
        loads = {name: load or 0.0 for name, load in event.load_bytes.items()}
        crosses = dict(zip(sites.names, uplink_load_bytes(sites, shares, model_bytes).tolist(), strict=True))
        for place in np.flatnonzero(sites.machines == 1).tolist():  # such a machine's own link is its site's uplink
            loads[names[place]] = crosses.pop(sites.name_of_node[place])
        found |= _of_links(LimitKind.UPLINK, crosses, _uplink_rates(event, 0), _uplink_rates(event, 1), event)
    found |= _of_links(LimitKind.LINK, loads, _rates(event, "up"), _rates(event, "down"), event)
    index = {name: place for place, name in enumerate(names)}
    for source, target, rate in _pairs(event):
        weights = pair_weights(nodes, (index[source], index[target]))
        carried = weights[0] * shares[index[source]] + weights[1] * shares[index[target]]
        found[Thing(LimitKind.PAIR, source, target)] = float(carried) / rate, Source.PROVEN
    for node, cores_s in event.cores_s.items():
        if cores_s:
            found[Thing(LimitKind.CORES, node)] = cores_s, Source.PROVEN
    for group in groups:
        found |= _of_group(group, nodes, shares)
    return found


def _computing(event: IterationEvent) -> dict[Thing, float]:
    """How long each worker computes before or while it exchanges, where that is known."""
    found = {}
    for node, iteration_s in event.iteration_s.items():
        if node in event.computed_s:
            started_s, finished_s = event.started_s[node], event.finished_s[node]
            begun_s = finished_s - iteration_s
            before_push_s = started_s - begun_s - event.plan_wait_s.get(node, 0.0)
            lasts_s = event.computed_s[node] - started_s
            takes_s = event.computed_s[node] - begun_s if lasts_s > LEVEL_PART * iteration_s else before_push_s
        else:
            takes_s = iteration_s - event.communication_s.get(node, 0.0) - event.plan_wait_s.get(node, 0.0)
        found[Thing(LimitKind.COMPUTING, node)] = max(0.0, takes_s)
    return found


def _of_links(
    kind: LimitKind,
    loads: Mapping[str, float],
    up: Mapping[str, tuple[float, Source]],
    down: Mapping[str, tuple[float, Source]],
    event: IterationEvent,
) -> dict[Thing, tuple[float, Source]]:
    """What links with these loads need; one entry where both directions are alike."""
    exchange_s = max(event.communication_s.values(), default=0.0)
    found: dict[Thing, tuple[float, Source]] = {}
    for name, load in loads.items():
        ways = {}
        for direction, rates in (("up", up), ("down", down)):
            if name in rates and load > 0:
                rate, source = rates[name]
                takes_s = load / rate
                ways[direction] = min(takes_s, exchange_s) if source is Source.HOPED else takes_s, source
        if len(ways) == 2 and _are_level(ways["up"], ways["down"]):
            found[Thing(kind, name, BOTH)] = max(ways.values(), key=lambda one: one[0])
        else:
            found |= {Thing(kind, name, direction): way for direction, way in ways.items()}
    return found


def _are_level(one: tuple[float, Source], other: tuple[float, Source]) -> bool:
    return one[1] is other[1] and abs(one[0] - other[0]) <= LEVEL_PART * max(one[0], other[0])


def _of_group(group: SharedUplinkEvent, nodes: Sequence[Node], shares: Floats) -> dict[Thing, tuple[float, Source]]:
    """What crosses between a group of nodes and the others, over the uplink that they seem to share."""
    within = np.array([node.name in group.nodes for node in nodes])
    is_worker = np.array([node.is_worker for node in nodes])
    crosses = float(
        (is_worker & within).sum() * shares[~within].sum() + (is_worker & ~within).sum() * shares[within].sum()
    )
    slower = min(group.up_bytes_per_s, group.down_bytes_per_s)
    return (
        {Thing(LimitKind.UPLINK, ", ".join(group.nodes), BOTH): (crosses / slower, Source.PROVEN)} if slower > 0 else {}
    )


# ---- what a record tells


def _nodes(step: Step) -> list[Node]:
    """The job's nodes with their roles."""
    ready, workers = step.ready, step.event.communication_s
    names = list(workers) if ready is None else ready.nodes
    servers = names if ready is None or not ready.servers else ready.servers
    return [Node(name, name in workers, name in servers) for name in names if name in workers or name in servers]


def _sites(step: Step) -> Sites | None:
    """The sites, where sums have two levels."""
    if step.ready is None or not step.ready.sites:
        return None
    return Sites(tuple(step.ready.sites[node.name] for node in _nodes(step)))


def _shares(step: Step) -> Floats | None:
    """Bytes that each node sums, shape (N,); None where the routing is not known."""
    event, nodes = step.event, _nodes(step)
    told = [event.shares.get(node.name) for node in nodes]
    if event.shares and sum(value or 0.0 for value in told) > 0:
        return np.array([value or 0.0 for value in told])
    scheme = SCHEMES.get(re.split(r"[-+@]", event.scheme)[0])
    if event.scheme in NOT_NALBS or (scheme is not None and scheme.ps_lite_kind):
        return None
    if step.ready is None or not step.ready.servers or step.layout is None or not step.layout.tensors:
        return None
    tensors = [Tensor(*row) for row in step.layout.tensors]
    keys = [int(tensor.name) if tensor.name.isdecimal() else k for k, tensor in enumerate(tensors)]
    sizes, ranks = route(tensors, len(step.ready.servers), keys)
    of_rank = np.bincount(ranks, sizes, minlength=len(step.ready.servers))
    by_name = dict(zip(step.ready.servers, of_rank.tolist(), strict=True))
    return np.array([by_name.get(node.name, 0.0) for node in nodes])


def _side(rates: Rates | None, direction: str) -> ByNode:
    return {} if rates is None else rates.up if direction == "up" else rates.down


def _rates(event: IterationEvent, direction: str) -> dict[str, tuple[float, Source]]:
    """Each node's rate, bytes per second, where it is known."""
    told = _side(event.estimate, direction), _side(event.least, direction), _side(event.configured, direction)
    return _known(*told)


def _uplink_rates(event: IterationEvent, column: int) -> dict[str, tuple[float, Source]]:
    """Each site's rate; column: 0 up, 1 down."""
    told = (event.estimate, event.least, event.configured)
    return _known(*({} if one is None else {site: pair[column] for site, pair in one.uplinks.items()} for one in told))


def _known(estimate: ByNode, least: ByNode, configured: ByNode) -> dict[str, tuple[float, Source]]:
    found: dict[str, tuple[float, Source]] = {}
    for name, rate in configured.items():
        if rate:
            found[name] = GOODPUT_PART * rate, Source.CONFIGURED
    for name, rate in estimate.items():
        if rate:
            bound = least.get(name, rate) or 0.0
            found[name] = rate, Source.PROVEN if bound >= 0.999 * rate else Source.HOPED
    return found


def _pairs(event: IterationEvent) -> list[tuple[str, str, float]]:
    """The capped pairs: those found, else those configured, less headers."""
    if event.estimate is not None and any(event.estimate.up.values()):
        return event.estimate.pairs or []
    return [(a, b, GOODPUT_PART * rate) for a, b, rate in (event.configured.pairs if event.configured else None) or []]


# ---- twice as fast


def _doubled(
    step: Step, times: Mapping[Thing, float], iteration_s: float, exchange_s: float, exposed_s: float
) -> dict[Thing, float]:
    """What an iteration would take if one thing alone were twice as fast. A scheme that plans would plan anew."""
    found = {}
    links = {thing: takes_s for thing, takes_s in times.items() if thing.kind.is_of_exchange}
    whole_s = max(links.values(), default=0.0)
    computing = sorted((takes_s for thing, takes_s in times.items() if thing.kind is LimitKind.COMPUTING), reverse=True)
    replanned = _Replanned.of(step)
    for thing, takes_s in times.items():
        if thing.kind.is_of_exchange:
            left_s = max([takes_s / 2, *(other_s for other, other_s in links.items() if other != thing)])
            if replanned is not None:
                left_s = min(left_s, replanned.with_doubled(thing))
            saved_s = min(max(0.0, whole_s - left_s), exposed_s)
        elif thing.kind is LimitKind.COMPUTING:
            others_s = computing[1] if len(computing) > 1 else 0.0
            saved_s = takes_s - max(takes_s / 2, others_s) if takes_s == computing[0] else 0.0
            # where computing hides a part of the exchange, links must still carry all of it
            saved_s = max(0.0, min(saved_s, takes_s - (exchange_s - exposed_s)))
        else:
            saved_s = takes_s / 2
        found[thing] = max(0.0, iteration_s - saved_s)
    return found


@dataclass(frozen=True)
class _Replanned:
    """A scheme that follows estimates, with the capacities that it plans on."""

    nodes: Sequence[Node]
    model_bytes: float
    capacities: Capacities

    @classmethod
    def of(cls, step: Step) -> "_Replanned | None":
        """None where the scheme does not plan by estimates, MXNet routed, or not all is known."""
        event, shares = step.event, _shares(step)
        scheme = SCHEMES.get(re.split(r"[-+@]", event.scheme)[0])
        if (
            shares is None
            or not event.shares
            or (scheme is not None and not (scheme.follows_estimates or scheme.needs_configured))
        ):
            return None
        nodes = _nodes(step)
        names = [node.name for node in nodes]
        up, down = (_rates(event, direction) for direction in ("up", "down"))
        if not all(name in up and name in down for name in names):
            return None
        rates = [[one[name][0] for name in names] for one in (up, down)]
        sites, uplinks = _sites(step), None
        if sites is not None:
            of_site = [_uplink_rates(event, k) for k in (0, 1)]
            if not all(site in one for site in sites.names for one in of_site):
                return None
            uplinks = Uplinks(sites, *(np.array([one[site][0] for site in sites.names]) for one in of_site))
        pairs = {(names.index(a), names.index(b)): rate for a, b, rate in _pairs(event)} if sites is None else {}
        capacities = Capacities(
            np.array(rates[0]), np.array(rates[1]), pairs, _core_times(event, names, shares), uplinks
        )
        return cls(nodes, float(shares.sum()), capacities)

    def with_doubled(self, thing: Thing) -> float:
        """The least time of an exchange, in seconds, if this one link, site, pair or node's cores were twice as fast."""
        return exact(self.nodes, self.model_bytes, self._faster(thing))[1]

    def _faster(self, thing: Thing) -> Capacities:
        given = self.capacities
        names = [node.name for node in self.nodes]
        both = [way for way in ("up", "down") if thing.direction in (way, BOTH)]
        if thing.kind is LimitKind.LINK:
            factor = np.where(np.array(names) == thing.where, 2.0, 1.0)
            return replace(given, **{way: getattr(given, way) * factor for way in both})
        if thing.kind is LimitKind.UPLINK and given.uplinks is not None:
            uplinks = given.uplinks
            factor = np.where(np.array(uplinks.sites.names) == thing.where, 2.0, 1.0)
            return replace(given, uplinks=replace(uplinks, **{way: getattr(uplinks, way) * factor for way in both}))
        if thing.kind is LimitKind.PAIR:
            pair = names.index(thing.where), names.index(thing.direction)
            return replace(given, pairs={**given.pairs, pair: 2 * given.pairs[pair]})
        if thing.kind is LimitKind.CORES and given.cores is not None:
            factor = np.where(np.array(names) == thing.where, 0.5, 1.0)
            return replace(given, cores=CoreTimes(given.cores.fixed_s * factor, given.cores.s_per_byte * factor))
        return given


def _core_times(event: IterationEvent, names: Sequence[str], shares: Floats) -> CoreTimes | None:
    """Cores whose time grows with the share from half of the present one: the record has only the whole."""
    told = [event.cores_s.get(name) for name in names]
    if any(value is None for value in told):
        return None
    whole = np.array(told, dtype=np.float64)
    per_byte = np.divide(whole / 2, shares, out=np.zeros(len(shares)), where=shares > 0)
    return CoreTimes(whole - per_byte * shares, per_byte)
