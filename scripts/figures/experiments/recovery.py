"""Computes figure 5: the number of iterations that a scheme needs to recover from a change of the network."""

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise

from nalb.reporting.record import Record, Step

NEAR = 1.10  # an iteration counts as recovered within this factor of the bound, or of the level at which the scheme settles


@dataclass(frozen=True)
class Recovery:
    """The recovery from one change. Counts start at 1, the first iteration wholly after the change; inf: not before the next."""

    at: float  # the change's place among the scheme's iterations: 2.5 is half-way through iteration 2
    to_bound: float  # iterations until one is within NEAR of the new bound
    to_settled: float  # iterations until one is within NEAR of the median of the later half of `seen`
    seen: int  # the number of iterations wholly between this change and the next


def recoveries(record: Record, scheme: str) -> list[Recovery]:
    """The recoveries, in order, from all changes that at least one whole iteration of the scheme followed."""
    steps = record.steps.get(scheme, [])
    if not steps:
        return []
    bounds_s = record.bounds_s(scheme)
    seen_s = [c.at_s for c in record.changes if any(s.begin_s < c.at_s <= s.event.at_s for s in steps)]
    found = []
    for at, (at_s, next_s) in zip(record.change_places(scheme), pairwise([*sorted(seen_s), math.inf]), strict=True):
        whole = [i for i, step in enumerate(steps) if _began_s(step) >= at_s and step.event.at_s <= next_s]
        if whole:
            times_s = [steps[i].communication_s for i in whole]
            settled_s = statistics.median(times_s[len(times_s) // 2 :])
            to_bound = _first([t <= NEAR * bounds_s[i] for t, i in zip(times_s, whole, strict=True)])
            found.append(Recovery(at, to_bound, _first([t <= NEAR * settled_s for t in times_s]), len(whole)))
    return found


def _began_s(step: Step) -> float:
    """The time of the iteration's first push by any worker; where the file has none, the end of the iteration before."""
    return min(step.event.started_s.values(), default=step.begin_s)


def _first(good: list[bool]) -> float:
    return good.index(True) + 1 if True in good else math.inf
