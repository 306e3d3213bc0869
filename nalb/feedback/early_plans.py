"""When a plan is made before the iteration before it has ended: where waiting for plans costs more than stale knowledge. Pure.

A plan that is there when an iteration begins keeps nobody waiting. But it knows nothing of the iteration before: where a link
changes there, one more iteration runs by a plan that does not suit it. So there is an account, in seconds of exchanges:

    earned   by each iteration: what the median worker waited for its plan, or would have
    paid     by each iteration that refutes an estimate, or takes `late_plan` times the last calm one: what it took beyond that

A calm iteration does neither; after `look_iterations` late ones in a row, late ones are calm.

Early plans are made while the account holds a whole iteration, which is what the next change is thought to cost at most. So they
never cost more than they have saved, and one iteration. Changes of the network keep the account low, long computing leaves no wait
to save, and in a long iteration the wait is too little to count.
"""

from collections import deque
from statistics import median_low

from nalb.measurement.rules import RULES, Rules


class EarlyPlans:
    """Decides it by how iterations by plan went."""

    def __init__(self, rules: Rules = RULES) -> None:
        self._rules = rules
        self.begin()

    def begin(self) -> None:
        """Begin anew with other tensors."""
        # For plans that were not early; one may be long by chance.
        self._waits_s: deque[float] = deque(maxlen=self._rules.look_iterations)
        self._account_s = 0.0
        self._calm_s = 0.0  # what the last calm iteration took; 0: links are still being learned
        self._late = 0  # late iterations in a row

    @property
    def pay(self) -> bool:
        """Whether the next plan should be an early one."""
        return self._account_s > self._calm_s > 0

    def judge(self, took_s: float, plan_wait_s: float | None, is_refuted: bool) -> None:
        """Take in an iteration by plan. plan_wait_s: what the median worker waited for the plan; None: that is no usual wait."""
        if plan_wait_s is not None:
            self._waits_s.append(plan_wait_s)
        is_late = 0 < self._rules.late_plan * self._calm_s < took_s
        self._late = self._late + 1 if is_late else 0
        if not is_refuted and (not is_late or self._late > self._rules.look_iterations):
            self._calm_s = took_s
        if self._calm_s:
            usual_s = median_low(self._waits_s) if len(self._waits_s) == self._waits_s.maxlen else 0.0
            left_s = self._account_s + usual_s - max(0.0, took_s - self._calm_s)
            self._account_s = max(0.0, min(left_s, self._rules.early_account * self._calm_s))
