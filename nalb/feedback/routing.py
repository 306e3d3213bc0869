"""When MXNet's own routing takes the place of plans: where plans gain nothing. Pure.

Slices are copied in and out, cost a message each, and are timed. MXNet's own routing does none of that, but knows no links. It is
quicker where not the links set the pace but the cores, or where all links are alike and its loads happen to be even.

evidence                                               action                               reason
SURE plans in a row refuted what was known of links    MXNet's own routing for TRIAL        not the links set the pace: each
or were late, and links need less for MXNet's own      iterations                           iteration would prove the same
loads than any of the last LOOK took
its median is no longer than that of the plans         it stays until LOOK plans cost       it costs less
                                                       PRICE of the time
that is over                                           plans until the same, but LOOK at    the network may have changed
                                                       least; then both are compared
LOOK in a row took LATE times its median               the same, at once; both are          it has
                                                       compared by what came since
its median is longer                                   plans until another TRIAL costs      each trial costs time
                                                       PRICE of the time
"""

import math
from collections import deque
from statistics import median

from nalb.feedback.trust import LATE

SURE = 8  # plans: what another network taught is unlearnt by then (tests/simulation/test_learning.py)
LOOK = 3  # iterations: one may be late by chance, and one be the first after a pause of the script
TRIAL = 5  # iterations; the first of them, which makes MXNet's buffers, is not counted
PRICE = 0.01  # of the time: what looking at the slower way may cost
LONGEST = 256  # iterations without a look, whatever it costs: the network may have changed
REMEMBERED = 9  # iterations of either way, which are compared by their medians
# What of MXNet's own routing is chosen at once: workers then ask nobody in between, and nothing that they show changes it.
RUN = 8  # iterations
RUN_S = 1.0  # longer ones hardly notice that they ask


class Routing:
    """Who routes, by how long iterations took."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Other tensors: nothing is known."""
        self._planned: deque[float] = deque(maxlen=REMEMBERED)  # seconds of iterations by plan
        self._own: deque[float] = deque(maxlen=REMEMBERED)  # ... and by MXNet's own routing
        self._exchanges: deque[float] = deque(maxlen=LOOK)  # of the former, seconds from first push to last pull
        self._left = 0  # iterations of MXNet's own routing to come
        self._is_first = self._is_trial = False
        self._since_own = 0  # plans
        self._unexplained = 0  # plans in a row
        self._rest = 0  # plans until the next trial
        self._late = 0

    @property
    def is_settled(self) -> bool:
        """Whether MXNet routes the next iteration too, whatever the present one shows."""
        return self._left > 0

    def choose_own(self, most: int = 1) -> int:
        """How many of the next iterations MXNet routes, at most so many at once; 0: a plan routes the next one.

        They count as chosen from then on, whatever the first of them show.
        """
        run = 1 if self._is_trial or not self._own else max(1, int(RUN_S / median(self._own)))
        run = min(run, RUN, most, self._left)
        self._left -= run
        return run

    def judge_plan(self, took_s: float, exchange_s: float, is_explained: bool, own_links_s: float) -> None:
        """Take in an iteration by plan.

        exchange_s: of it, its exchange. is_explained: what was known of the links holds, and explains its time. own_links_s: what
        the links need for MXNet's own loads; infinite where that is not known.
        """
        self._planned.append(took_s)
        self._exchanges.append(exchange_s)
        self._rest = max(0, self._rest - 1)
        self._since_own += 1
        self._unexplained = 0 if is_explained else self._unexplained + 1
        if own_links_s >= min(self._exchanges):
            return
        if self._own and self._since_own >= LOOK:
            self._compare()
        elif not self._own and self._unexplained >= SURE and not self._rest:
            self._begin_own(TRIAL, is_trial=True)

    def judge_own(self, took_s: float) -> None:
        """Take in an iteration that MXNet routed."""
        if self._is_first:
            self._is_first = False
            return
        self._late = self._late + 1 if self._own and took_s > LATE * median(self._own) else 0
        self._own.append(took_s)
        if self._is_trial and not self._left:
            self._compare()
        elif self._late == LOOK:
            self._left = 0
            self._planned.clear()  # either way, what came before says nothing of the network as it is now
            self._own = deque(list(self._own)[-LOOK:], maxlen=REMEMBERED)

    def _begin_own(self, iterations: int, is_trial: bool) -> None:
        self._left, self._is_trial = iterations, is_trial
        self._is_first, self._since_own, self._late = True, 0, 0

    def _compare(self) -> None:
        own_s, planned_s = median(self._own), median(self._planned)
        if own_s <= planned_s:
            self._begin_own(_pause(LOOK, planned_s / own_s), is_trial=False)
        else:
            self._own.clear()
            self._is_trial, self._rest = False, _pause(TRIAL, own_s / planned_s)


def _pause(looks: int, ratio: float) -> int:
    """Iterations between `looks` of the slower way, which takes ratio times as long as the other."""
    return min(max(SURE, math.ceil(looks * (ratio - 1) / PRICE)), LONGEST)
