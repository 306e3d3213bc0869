"""When another way to exchange gradients takes the place of plans: where plans gain nothing. Pure.

The other way is MXNet's own routing in what follows, gloo's ring with PyTorch, or equal shares where delay sets the pace
(services/exchange/other_way.py).

Plans copy slices in and out, send a message for each, and time it. MXNet's own routing does none of that, but knows no links. It
is quicker where the cores set the pace and not the links, or where all links are alike and its loads happen to be even. Lower
case names are fields of Rules.

evidence                                               action                               reason
the median of what links need for MXNet's own loads    MXNet's own routing for              links do not set the pace
is less than that of what the exchanges of the last    `trial_iterations`
`plans_to_trial` plans took, and likewise of the last
`look_iterations`
delay sets the pace of `look_iterations` plans         the same trial                       plans have little to share out,
                                                                                            and all wait for them
the median of MXNet's own routing is no longer than    it stays until `look_iterations`     it costs less
that of the plans                                      plans cost `look_price` of the time
that time is over                                      plans until links need less in      the network may have changed
                                                       `look_iterations`, as above; then
                                                       both are compared
the iteration before the tensors were registered       the same trial, once             its sums were made without plans
took no longer than any of `look_iterations` plans
`look_iterations` in a row took more than `off_own`    the same, at once; only iterations   the network has changed
times the median of MXNet's own routing, or all took   since then are compared
less than the median by that
plans take less after that                             a trial before it is believed        it may have been a disturbance
the median of MXNet's own routing is longer            plans until another trial costs      each trial costs time
                                                       `look_price` of the time, but for
                                                       `longest_rest` at most, and twice
                                                       as long after each further trial
a trial has cost `look_price` of `longest_rest` plans  it ends, and counts as longer        it would cost too much
"""

import math
from collections import deque
from statistics import median

from nalb.measurement.rules import RULES, Rules


class Routing:
    """Decides whether a plan distributes slices or the other way is taken, by how long iterations took."""

    def __init__(self, rules: Rules = RULES) -> None:
        self._rules = rules
        self.begin()

    def begin(self) -> None:
        """Begin anew with other tensors: nothing is known."""
        compared = self._rules.compared_iterations
        self._planned: deque[float] = deque(maxlen=compared)  # seconds of iterations by plan
        self._own: deque[float] = deque(maxlen=compared)  # seconds of iterations by MXNet's own routing
        # Of the last plans: seconds from first push to last pull, and that links would have needed for MXNet's own loads.
        kept = max(self._rules.plans_to_trial, self._rules.look_iterations)
        self._exchanges: deque[float] = deque(maxlen=kept)
        self._own_links: deque[float] = deque(maxlen=kept)
        self._left = 0  # iterations of MXNet's own routing to come
        self._is_first = self._is_trial = False
        self._judged = 0  # iterations of the present stretch of MXNet's own routing that have ended
        self._since_own = 0  # plans since MXNet's own routing
        self._rest = 0  # plans until the next trial
        self._lost = 0  # trials in a row that MXNet's own routing has lost
        # Iterations of MXNet's own routing in a row that took much longer than the median; below 0: much less.
        self._off = 0
        self._is_doubtful = False  # iterations of MXNet's own routing are known only from while it was off
        self._direct_s = math.inf  # what an iteration took before any plan

    def note_direct(self, iteration_s: float) -> None:
        """Take in how long an iteration took before the tensors were registered: they were summed without plans."""
        self._direct_s = iteration_s

    @property
    def is_settled(self) -> bool:
        """Whether MXNet also routes the next iteration, whatever the present one shows."""
        return self._left > 0

    def forget_own(self) -> None:
        """Forget what is known of the other way: from here on it is another one. Not to be called while it is chosen for later."""
        for known in (self._own, self._exchanges, self._own_links):
            known.clear()
        self._is_trial = False

    def choose_own(self, most: int = 1) -> int:
        """The number of the next iterations that MXNet routes, at most `most`; 0: a plan routes the next one.

        These iterations are chosen for good: the first of them cannot change the others.
        """
        run = 1 if self._is_trial or not self._own else max(1, int(self._rules.run_s / median(self._own)))
        run = min(run, self._rules.run_iterations, most, self._left)
        self._left -= run
        return run

    def judge_plan(self, took_s: float, exchange_s: float, own_links_s: float, is_delayed: bool = False) -> None:
        """Take in an iteration by plan.

        exchange_s: the part of took_s from first push to last pull. own_links_s: seconds that the links need for the other way;
        infinite if unknown. is_delayed: delay sets the pace.
        """
        self._planned.append(took_s)
        self._exchanges.append(exchange_s)
        self._own_links.append(own_links_s)
        self._rest = max(0, self._rest - 1)
        self._since_own += 1
        looks = self._rules.look_iterations
        if self._left or len(self._planned) < looks:  # a stretch that is about to begin was chosen before
            return
        if not (is_delayed or self._do_links_spare(looks)):
            return
        if self._own:
            if self._since_own >= looks:
                self._compare()
        elif not self._rest and (is_delayed or self._is_hinted() or self._do_links_spare(self._rules.plans_to_trial)):
            self._begin_own(self._rules.trial_iterations, is_trial=True)

    def _do_links_spare(self, plans: int) -> bool:
        """Whether the exchanges of the last plans took longer than links need for the other way, by medians."""
        if len(self._exchanges) < plans:
            return False
        return median(list(self._own_links)[-plans:]) < median(list(self._exchanges)[-plans:])

    def _is_hinted(self) -> bool:
        """Whether an iteration without plans took no longer than these; answered once, since one trial shows it."""
        if self._direct_s > min(self._planned):
            return False
        self._direct_s = math.inf
        return True

    def judge_own(self, took_s: float) -> None:
        """Take in an iteration that MXNet routed."""
        self._judged += 1
        self._since_own = 0  # a plan may have begun after this stretch was chosen
        if not (self._is_trial or self._own):
            return  # it was chosen before its trial ended
        if self._is_first:
            self._is_first = False
            return
        self._count_off(took_s)
        self._own.append(took_s)
        # A trial's last iterations are chosen before its earlier ones have ended.
        if self._is_trial and (self._judged == self._rules.trial_iterations or self._costs_too_much()):
            self._left = 0
            self._compare()
        elif abs(self._off) == self._rules.look_iterations:
            self._left, self._off, self._lost, self._is_doubtful = 0, 0, 0, True
            self._planned.clear()  # earlier iterations, of either way, say nothing of the present network
            self._own = deque(list(self._own)[-self._rules.look_iterations :], maxlen=self._own.maxlen)

    def _count_off(self, took_s: float) -> None:
        usual_s = median(self._own) if len(self._own) == self._own.maxlen else took_s
        if took_s > self._rules.off_own * usual_s:
            self._off = max(0, self._off) + 1
        elif took_s * self._rules.off_own < usual_s:
            self._off = min(0, self._off) - 1
        else:
            self._off = 0

    def _costs_too_much(self) -> bool:
        """Whether the trial under way has cost what it may."""
        planned_s = median(self._planned)
        return (
            sum(self._own) - len(self._own) * planned_s > self._rules.look_price * self._rules.longest_rest * planned_s
        )

    def _begin_own(self, iterations: int, is_trial: bool) -> None:
        self._left, self._is_trial = iterations, is_trial
        self._is_first, self._since_own, self._off, self._judged = True, 0, 0, 0

    def _compare(self) -> None:
        own_s, planned_s, is_doubtful = median(self._own), median(self._planned), self._is_doubtful
        self._is_doubtful = False
        if own_s <= planned_s:
            self._lost = 0
            self._begin_own(self._pause(self._rules.look_iterations, planned_s / own_s), is_trial=False)
        elif is_doubtful:
            self._own.clear()
            self._begin_own(self._rules.trial_iterations, is_trial=True)
        else:
            self._own.clear()
            looks = min(self._judged, self._rules.trial_iterations)
            self._is_trial, self._rest = False, self._pause(looks, own_s / planned_s, 2**self._lost)
            self._lost += 1

    def _pause(self, looks: int, ratio: float, times_longest: int = 1) -> int:
        """Iterations between `looks` iterations of the slower way, which take ratio times as long as those of the other.

        times_longest: how many times `longest_rest` it may be.
        """
        worth_it = math.ceil(looks * (ratio - 1) / self._rules.look_price)
        return min(max(self._rules.shortest_rest, worth_it), times_longest * self._rules.longest_rest)
