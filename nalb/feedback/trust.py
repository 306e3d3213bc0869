"""When plans are trusted: by how iterations end, nothing else. Pure.

evidence                                             action                                    reason
estimates were refuted, or do not explain the time   the next iteration has no window          only those show limits
of an iteration with a window
FEW_FREE, twice as many, ... MANY_FREE iterations    one without a window                      a window hides what became faster
since the last without one
plans took longer than equal shares, added up to     equal shares for 1, 2, 4 ... iterations   whatever the estimates rest on is
a whole iteration                                                                              not so
"""

from dataclasses import dataclass

FEW_FREE = 5  # iterations without a window cost up to 10 %: every fifth costs 2 %
MANY_FREE = 40  # where nothing changes, less
# Times: TCP's sharing, headers and acknowledgements explain 1.05 to 1.2 (docs/results/close-to-the-bound.md).
LATE = 1.25
MOST_REGRET = 1.0  # iterations of equal shares that plans may cost more than those
REGRET_OF_ONE = 0.5  # of an iteration: the network may have changed within it
MAX_PATIENCE = 32  # iterations that something which did not help is left alone, at most


@dataclass(frozen=True)
class Outcome:
    """How an iteration went, in seconds."""

    took_s: float  # what the exchange took by itself
    explained_s: float | None  # what it should have taken by what is known for sure; None while nodes are not measured
    is_refuted: bool  # it showed that something else was known than is so
    has_equal_shares: bool
    follows_estimates: bool  # otherwise it says nothing of plans that do
    is_bounded: bool  # equal shares take at most twice as long as any: all nodes are workers

    @property
    def is_late(self) -> bool:
        """Whether what is known does not explain how long it took, or nothing is known."""
        return self.explained_s is None or self.took_s > LATE * self.explained_s


class Trust:
    """What was made of the iterations so far, for the next plan."""

    def __init__(self) -> None:
        self.begin()
        self._equal_left = 0  # until nodes are measured there are equal shares anyway

    def begin(self) -> None:
        """Other tensors: what equal shares take is not known."""
        self._equal_s: float | None = None
        self._is_old = True  # that was before what is known now
        self._regret = 0.0
        self._is_settled = False  # nothing asks for an iteration without a window
        self._is_refuted = True  # the last one refuted an estimate
        self._since_free = 0
        self._every_free = FEW_FREE
        self._patience = 1  # iterations of equal shares, next time
        self._equal_left = 1  # iterations of equal shares to come

    @property
    def needs_equal_shares(self) -> bool:
        """Whether the next iteration has equal shares, whatever is known."""
        return self._equal_left > 0

    def allow_window(self, is_by_sites: bool = False) -> bool:
        """Whether the next iteration may have a window; to be asked once for each.

        is_by_sites: what machines send within their sites delays what the uplinks carry, where it comes all at once. So such
        iterations go without a window only now and then, and after one that refuted an estimate, but not because they were late
        (measured on geo2x3: 2.13 s without, 1.97 s with one).
        """
        self._since_free += 1
        is_due = self._since_free >= self._every_free
        is_free = is_due or (self._is_refuted if is_by_sites else not self._is_settled)
        if is_free:
            self._since_free, self._every_free = 0, min(2 * self._every_free, MANY_FREE) if is_due else self._every_free
        return not is_free

    def judge(self, outcome: Outcome) -> None:
        """Take one iteration in."""
        is_late = outcome.is_late
        has_window = self._since_free > 0
        self._is_refuted = outcome.is_refuted
        self._is_settled = not (outcome.is_refuted or (is_late and has_window))
        if not self._is_settled:
            self._every_free = FEW_FREE
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
            self._regret = max(0.0, self._regret + min(outcome.took_s / self._equal_s - 1, REGRET_OF_ONE))
        if self._regret > MOST_REGRET:
            self._equal_left, self._patience = self._patience, min(2 * self._patience, MAX_PATIENCE)
            self._regret = 0.0
        elif not self._regret and not is_late:
            self._patience = 1
