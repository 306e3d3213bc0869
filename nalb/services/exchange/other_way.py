"""The other way to exchange gradients, beside plans that follow the measured links: nothing is timed, and nobody waits. Pure.

Delay sets the pace where round trips take most of an exchange. Then plans save little, and each of them is waited for. TCP sends
the more in a round trip the more a connection carried in the last ones, so shares that move cost round trips too. There the other
way is equal shares that stay. Elsewhere it is the data plane's own routing, where it has one.
"""

import math
from typing import Protocol

from nalb.feedback.routing import Routing
from nalb.feedback.window import delay_sets_pace
from nalb.measurement.rules import RULES, Rules
from nalb.planning.nodes import Floats
from nalb.planning.slices import Layout, Tensor
from nalb.services.exchange.knowledge import Known


class Loads(Protocol):
    """What a data plane has each node sum where no plan distributes slices."""

    def shares(self, tensors: tuple[Tensor, ...]) -> Floats | None:
        """Bytes per node, shape (N,); None where the plane cannot sum these tensors without a plan."""


class OtherWay:
    """Which the other way is, when it is taken, and what links need for it."""

    def __init__(self, loads: Loads | None, routing: Routing, rules: Rules = RULES):
        """loads: what each node sums by the data plane's own routing; None: it has none. routing: decides when the way is taken."""
        self._routing, self._rules = routing, rules
        self._loads = loads
        self._shares: Floats | None = None  # of the present tensors; None: they cannot be summed without a plan
        self.is_equal = False  # equal shares are the other way
        self._unlike = 0  # plans in a row that ask for the other kind of way

    def begin(self, layout: Layout, has_other_tensors: bool) -> None:
        """Take in the layout of the tensors from here on. has_other_tensors: False: the same ones are cut anew."""
        self._shares = None if self._loads is None else self._loads.shares(layout.tensors)
        if has_other_tensors:
            self._routing.begin()

    @property
    def is_settled(self) -> bool:
        """Whether the next iteration goes the other way too, whatever the present one shows."""
        return self._routing.is_settled

    def choose(self, most: int) -> int:
        """The number of the next iterations that go the other way, at most `most`; 0: the next one follows the measured links."""
        return self._routing.choose_own(1 if self.is_equal else most)

    def links_s(self, known: Known) -> float:
        """Seconds that links need for the data plane's own routing, by lower bounds of rates.

        Infinite where these are not known, or a plan is needed.
        """
        shares = self._shares
        needed_s = None if shares is None else known.exchange_s(shares, float(shares.sum()), is_planned=False)
        return math.inf if needed_s is None else needed_s

    def judge_plan(self, iteration_s: float, exchange_s: float, known: Known, early_saves_s: float = 0.0) -> None:
        """Take in an iteration that followed the measured links.

        exchange_s: from first push to last pull. early_saves_s: what workers waited for its plan, and would not once plans are made
        early; 0: they never are.
        """
        is_delayed = delay_sets_pace(known.round_trip_s, exchange_s)
        self._unlike = self._unlike + 1 if is_delayed != self.is_equal else 0
        if self._unlike >= self._rules.look_iterations and not self._routing.is_settled:
            self.is_equal, self._unlike = is_delayed, 0
            self._routing.forget_own()
        # Messages that wait for round trips look like slow links, so links are not asked there.
        links_s = 0.0 if self.is_equal else self.links_s(known)
        plan_s = iteration_s - early_saves_s if is_delayed else iteration_s
        self._routing.judge_plan(plan_s, exchange_s, links_s, self.is_equal)

    def judge(self, iteration_s: float) -> None:
        """Take in an iteration that went the other way."""
        self._routing.judge_own(iteration_s)

    def note_direct(self, iteration_s: float) -> None:
        """Take in how long the iteration before the tensors were registered took, which the framework's own routing summed."""
        self._routing.note_direct(iteration_s)
