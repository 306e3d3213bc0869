"""Ranks what set the pace of iterations, and says what twice the speed of one thing would save. Pure functions of a record.

What each thing alone needs is in step_costs.py. Times are medians over iterations; what is saved is computed for the last of them.
Links whose rates are proven come before those that are only hoped for, if they explain most of the exchange.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from nalb.events import SharedUplinkEvent
from nalb.reporting.record import Step, Timeline, after_warm_up
from nalb.reporting.step_costs import (
    LEVEL_PART,
    LimitKind,
    Needs,
    RateSource,
    StepModel,
    Thing,
    exposed_s,
    merged,
    needs,
    shares_of,
)

EXPLAINED_PART = 0.85  # of a time that is only hoped for: a proven one that is as long comes first
NEAR_PART = 0.9  # of the longest time: what needs this much may be a bottleneck
SHOWN = 3  # things that a sentence names


@dataclass(frozen=True)
class Limit:
    """One thing, and what it means for an iteration. Times in seconds."""

    thing: Thing
    takes_s: float  # what it needs alone, each iteration
    doubled_s: float  # what an iteration would take if this alone were twice as fast
    source: RateSource


@dataclass(frozen=True)
class Pace:
    """What set the pace of one scheme's iterations. Times are medians in seconds."""

    scheme: str
    iterations: int  # how many count
    jobs: int  # whose iterations these are: each start of a script is one
    iteration_s: float  # from the slowest worker's end to the next one's
    exchange_s: float  # the slowest worker's time from first push to last pull
    exposed_s: float  # the part of the exchange that computing does not hide
    limits: tuple[Limit, ...]  # from what sets the pace downwards
    level: int  # how many of the first limits need as long as the first one, within LEVEL_PART
    unexplained_s: float  # of an iteration: what neither computing, plans, delay nor the slowest link explains
    are_loads_known: bool  # False: the scheme's routing is not known, so that no link can be named
    left_out: int  # jobs before, whose iterations do not count

    @property
    def plan_wait_s(self) -> float:
        """How long even the worker that is ready last waits for its plan."""
        return next((limit.takes_s for limit in self.limits if limit.thing.kind is LimitKind.PLANS), 0.0)

    @property
    def sentence(self) -> str:
        """What sets the pace, for people; empty where nothing is known.

        What is no link, such as computing, sets it only if it needs as long as the part of the exchange that nothing explains.
        """
        left_s = min(self.exposed_s, self.unexplained_s)
        if left_s and all(one.takes_s < left_s and not one.thing.kind.is_of_exchange for one in self.limits[:1]):
            return "the exchange sets the pace, and what is known of links does not explain it"
        if not self.limits:
            return ""
        if self.level > 1:
            names = [limit.thing.words for limit in self.limits[: self.level]]
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            return f"{', '.join(names[:SHOWN])}{more} set the pace alike"
        first = self.limits[0].thing
        return f"{first.words} set{'' if first.kind is LimitKind.CORES else 's'} the pace"


def paces(timeline: Timeline, last: int | None = None) -> list[Pace]:
    """The pace of each scheme's iterations after the warm-up, in the order of first iterations.

    last: only so many of the newest iterations of each; None: all.
    """
    found = []
    for scheme, steps in timeline.steps.items():
        in_turn, warm = ([one for one in some if not one.is_first] for some in (steps, after_warm_up(steps)))
        chosen = (warm or in_turn or steps)[-(last or len(steps)) :]
        found.append(pace_of(scheme, chosen, timeline.shared_uplinks, timeline.left_out))
    return found


def pace_of(scheme: str, steps: Sequence[Step], shared: Iterable[SharedUplinkEvent] = (), left_out: int = 0) -> Pace:
    """What set the pace of these iterations, of which there must be one.

    shared: uplinks that were noticed. left_out: jobs of the record before these, which do not count.
    """
    last = steps[-1]
    found = _medians(steps, list({tuple(one.nodes): one for one in shared}.values()))
    iteration_s = median(step.iteration_s for step in steps)
    exchange_s = median(step.communication_s for step in steps)
    shown_s = median(map(exposed_s, steps))
    times = {thing: takes_s for thing, (takes_s, _) in found.items()}
    doubled = _doubled(last, times, iteration_s, exchange_s, shown_s)
    limits = [
        Limit(thing, takes_s, doubled[thing], source) for thing, (takes_s, source) in found.items() if takes_s > 0
    ]
    ranked, level = _ranked(limits)
    longest = {kind: max((t for thing, t in times.items() if thing.kind is kind), default=0.0) for kind in LimitKind}
    explained_s = min(max(takes_s for kind, takes_s in longest.items() if kind.is_of_exchange), shown_s)
    explained_s += sum(takes_s for kind, takes_s in longest.items() if not kind.is_of_exchange)
    return Pace(
        scheme,
        len(steps),
        len({id(step.ready) for step in steps}),
        iteration_s,
        exchange_s,
        shown_s,
        ranked,
        level,
        max(0.0, iteration_s - explained_s),
        shares_of(last) is not None,
        left_out,
    )


def _medians(steps: Sequence[Step], groups: Sequence[SharedUplinkEvent]) -> Needs:
    """The median need of each thing that most iterations and the last one have; how it is known in the last one."""
    lists: defaultdict[Thing, list[float]] = defaultdict(list)
    for step in steps:
        of_step = needs(step, groups)
        for thing, (takes_s, _) in of_step.items():
            lists[thing].append(takes_s)
    return merged(
        {
            thing: (median(lists[thing]), source)
            for thing, (_, source) in of_step.items()
            if 2 * len(lists[thing]) > len(steps)
        }
    )


def _ranked(limits: Iterable[Limit]) -> tuple[tuple[Limit, ...], int]:
    """The limits from the greatest time downwards, those only hoped for counted less, and how many are level with the first.

    Of those that are level, the one comes first whose speed would save most.
    """

    def weight_s(limit: Limit) -> float:
        return limit.takes_s * (EXPLAINED_PART if limit.source is RateSource.HOPED else 1.0)

    ranked = sorted(limits, key=lambda one: -weight_s(one))
    level = [one for one in ranked if weight_s(one) >= (1 - LEVEL_PART) * weight_s(ranked[0])]
    level.sort(key=lambda one: one.doubled_s)
    return (*level, *ranked[len(level) :]), len(level)


def _doubled(
    step: Step, times: Mapping[Thing, float], iteration_s: float, exchange_s: float, shown_s: float
) -> dict[Thing, float]:
    """What an iteration would take if one thing alone were twice as fast. A scheme that plans would plan anew.

    A faster link saves no more than the part of the exchange that shows, `shown_s`. Where computing hides a part of the exchange,
    links must still carry all of it. What needs less than NEAR_PART of the longest time is no bottleneck of a plan either, so no
    plan is made for it.
    """
    found, links = {}, {thing: takes_s for thing, takes_s in times.items() if thing.kind.is_of_exchange}
    whole_s = max(links.values(), default=0.0)
    computing = sorted((t for thing, t in times.items() if thing.kind is LimitKind.COMPUTING), reverse=True)
    model = StepModel.of(step)
    for thing, takes_s in times.items():
        if thing.kind.is_of_exchange:
            left_s = max([takes_s / 2, *(other_s for other, other_s in links.items() if other != thing)])
            if model is not None and model.follows and takes_s >= NEAR_PART * whole_s:
                left_s = min(left_s, model.least_s(thing))
            saved_s = min(max(0.0, whole_s - left_s), shown_s)
        elif thing.kind is LimitKind.COMPUTING:
            others_s = computing[1] if len(computing) > 1 else 0.0
            saved_s = takes_s - max(takes_s / 2, others_s) if takes_s == computing[0] else 0.0
            saved_s = max(0.0, min(saved_s, takes_s - (exchange_s - shown_s)))
        else:
            saved_s = takes_s / 2
        found[thing] = max(0.0, iteration_s - saved_s)
    return found
