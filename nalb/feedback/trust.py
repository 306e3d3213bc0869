"""When plans are trusted: by how iterations end, nothing else. Pure. Lower case names are fields of Rules.

evidence                                             action                                    reason
an estimate was refuted, or estimates do not         the next iteration has no window          only iterations without a window show
explain the time of an iteration with a window                                                 what limits links
`few_free`, twice as many, ... `many_free`           one iteration without a window            a window hides links that became
iterations since the last one without a window                                                 faster
plans took longer than equal shares, by              equal shares for 1, 2, 4 ... iterations   the estimates' assumptions do not
`most_regret` iterations in all                                                                hold
"""

from dataclasses import dataclass

from nalb.measurement.rules import RULES, Rules


@dataclass(frozen=True)
class Outcome:
    """How an iteration went, in seconds."""

    took_s: float  # what the exchange took by itself
    explained_s: float | None  # what the lower bounds of rates explain; None while nodes are not measured
    is_refuted: bool  # the iteration contradicted an estimate
    has_equal_shares: bool
    follows_estimates: bool  # False: the iteration says nothing of plans that follow estimates
    is_bounded: bool  # equal shares take at most twice as long as any others: all nodes are workers
    had_window: bool  # what Trust.has_window was when its plan was made

    def is_late(self, rules: Rules) -> bool:
        """Whether the estimates do not explain how long the exchange took, or there are none."""
        return self.explained_s is None or self.took_s > rules.late_plan * self.explained_s


class Trust:
    """Decides from the iterations so far whether the next plan follows the estimates, and whether it may have a window."""

    def __init__(self, rules: Rules = RULES) -> None:
        self._rules = rules
        self.begin()
        self._equal_left = 0  # until nodes are measured there are equal shares anyway

    def begin(self) -> None:
        """Begin anew with other tensors: the time that equal shares take is unknown."""
        self._equal_s: float | None = None  # what equal shares took
        self._is_old = True  # an estimate was refuted since then
        self._regret = 0.0  # iterations of equal shares
        self._is_settled = False  # nothing asks for an iteration without a window
        self._is_refuted = True  # the last iteration refuted an estimate
        self._since_free = 0  # iterations since the last one without a window
        self._every_free = self._rules.few_free
        self._patience = 1  # iterations of equal shares, next time
        self._equal_left = 1  # iterations of equal shares to come

    @property
    def needs_equal_shares(self) -> bool:
        """Whether the next iteration has equal shares, whatever the estimates are."""
        return self._equal_left > 0

    def allow_window(self, is_by_sites: bool = False) -> bool:
        """Whether the next iteration may have a window; to be asked once for each iteration.

        is_by_sites: traffic within sites that comes all at once delays the traffic on uplinks. So by sites, a late iteration does
        not remove the window (measured on geo2x3: 2.13 s without, 1.97 s with a window). A refuted estimate still does.
        """
        is_due, is_free = self._is_due, self.looks_next(is_by_sites)
        self._since_free = 0 if is_free else self._since_free + 1
        if is_due:
            self._every_free = min(2 * self._every_free, self._rules.many_free)
        return not is_free

    def looks_next(self, is_by_sites: bool = False) -> bool:
        """Whether the next iteration has no window, by what is known now. is_by_sites: see `allow_window`."""
        return self._is_due or (self._is_refuted if is_by_sites else not self._is_settled)

    @property
    def _is_due(self) -> bool:
        return self._since_free + 1 >= self._every_free

    @property
    def has_window(self) -> bool:
        """Whether the iteration that `allow_window` was last asked for may have a window."""
        return self._since_free > 0

    def judge(self, outcome: Outcome) -> None:
        """Take one iteration in."""
        is_late = outcome.is_late(self._rules)
        self._is_refuted = outcome.is_refuted
        self._is_settled = not (self._rules.looks_again and (outcome.is_refuted or (is_late and outcome.had_window)))
        if not self._is_settled:
            self._every_free = self._rules.few_free
        if outcome.has_equal_shares:
            self._judge_equal(outcome.took_s)
        elif outcome.follows_estimates:
            self._judge_plan(outcome, is_late)
            self._is_old |= outcome.is_refuted

    def _judge_equal(self, took_s: float) -> None:
        self._equal_s, self._is_old = took_s, False
        self._equal_left = max(0, self._equal_left - 1)

    def _judge_plan(self, outcome: Outcome, is_late: bool) -> None:
        if self._equal_s is not None and (outcome.is_bounded or not self._is_old):
            self._regret = max(0.0, self._regret + min(outcome.took_s / self._equal_s - 1, self._rules.regret_of_one))
        if self._regret > self._rules.most_regret:
            self._equal_left, self._patience = self._patience, min(2 * self._patience, self._rules.max_patience)
            self._regret = 0.0
        elif not self._regret and not is_late:
            self._patience = 1
