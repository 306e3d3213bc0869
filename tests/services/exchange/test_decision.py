"""What is decided, as a function of where the job is, of what is known and of what is asked for."""

from dataclasses import replace

import numpy as np
import pytest

from nalb.errors import InputError
from nalb.measurement.estimates import Estimate
from nalb.planning.distribution import DecisionKind
from nalb.planning.nodes import Capacities
from nalb.planning.shares import bound_s
from nalb.planning.sites import Sites
from nalb.planning.slices import Tensor, build_layout
from nalb.schemes import AVERAGE, EXACT, JOINT, STOCK, Scheme
from nalb.services.exchange.decision import Decision, PlanContext, PlanOptions, decide
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.knowledge import Known

NAMES = [f"n{i}" for i in range(4)]
JOB = JobNodes.of(NAMES, set(NAMES), {name: rank for rank, name in enumerate(NAMES)})
LAYOUT = build_layout([Tensor("w", 3_200_000, "float32")], num_nodes=4, num_servers=4, alpha_bytes=1e4)
RATES = np.array([2 * [25e6, 15e6, 20e6, 6e6]]).reshape(2, 4)
UNKNOWN = Estimate(*np.full((2, 4), np.nan), np.full((2, 4), np.nan))
NOTHING = Known(JOB, UNKNOWN, None, None, [()] * 4, 0.0, False, 0.0)
MEASURED = replace(NOTHING, estimate=Estimate(*RATES, RATES))
START = PlanContext(0, LAYOUT, None, needs_equal_shares=False)
KEEPS = Scheme(
    "keeps", lambda now: (None, "as before") if now.present_bytes else EXACT.decide(now), follows_estimates=True
)


@pytest.mark.parametrize(
    ("known", "needs_equal_shares", "kind"),
    [
        (NOTHING, False, DecisionKind.UNMEASURED),
        (MEASURED, True, DecisionKind.DISTRUSTED),
        (MEASURED, False, DecisionKind.PLANNED),
    ],
)
def test_the_kind_says_why_shares_are_equal(known, needs_equal_shares, kind):
    decision = decide(replace(START, needs_equal_shares=needs_equal_shares), known, PlanOptions(EXACT))
    assert decision.kind is kind
    assert decision.has_equal_shares == (kind is not DecisionKind.PLANNED)
    if kind is DecisionKind.PLANNED:
        assert decision.plan.predicted_s < 1.05 * bound_s(JOB.nodes, LAYOUT.model_bytes, Capacities(*RATES, {}))


def test_the_same_arguments_give_the_same_decision():
    assert decide(START, MEASURED, PlanOptions(EXACT)) == decide(START, MEASURED, PlanOptions(EXACT))


@pytest.mark.parametrize(
    ("known", "needs_equal_shares", "kind"),
    [
        (NOTHING, False, DecisionKind.UNMEASURED),
        (MEASURED, True, DecisionKind.DISTRUSTED),
        (MEASURED, False, DecisionKind.PLANNED),
    ],
)
def test_equal_shares_that_stay_are_there_by_what_is_known_later(known, needs_equal_shares, kind):
    begun = decide(START, NOTHING, PlanOptions(KEEPS))
    assert begun.kind is DecisionKind.UNMEASURED
    context = PlanContext(1, LAYOUT, begun, needs_equal_shares)
    kept = decide(context, known, PlanOptions(KEEPS))
    assert (kept.plan, kept.reason) == (begun.plan, "as before")
    assert kept.kind is kind


def test_another_schemes_plan_is_not_kept():
    begun = decide(START, MEASURED, PlanOptions(AVERAGE))
    fresh = decide(START, MEASURED, PlanOptions(KEEPS))
    assert decide(replace(START, present=begun), MEASURED, PlanOptions(KEEPS)) == fresh != begun


def test_iterations_are_left_to_mxnet_without_a_plan_and_untimed():
    left = decide(replace(START, other_iterations=3), MEASURED, PlanOptions(EXACT))
    assert left == Decision(STOCK, None, DecisionKind.LEFT, left.reason, False, 3)
    assert left.reason
    routed = decide(START, MEASURED, PlanOptions(STOCK))
    assert (routed.plan, routed.kind, routed.iterations) == (None, DecisionKind.ROUTED, 1)


@pytest.mark.parametrize("known", [NOTHING, MEASURED])
def test_where_the_other_way_is_equal_shares_they_are_planned_and_untimed(known):
    other = decide(replace(START, other_iterations=1, other_is_equal=True), known, PlanOptions(EXACT))
    assert (other.scheme, other.kind, other.is_measured, other.iterations) == (AVERAGE, DecisionKind.LEFT, False, 1)
    assert other.has_equal_shares
    assert other.plan.server_of_slice == decide(START, known, PlanOptions(AVERAGE)).plan.server_of_slice


@pytest.mark.parametrize(
    ("scheme", "forecasts", "is_measured"),
    [(EXACT, None, True), (EXACT, False, False), (AVERAGE, None, False), (AVERAGE, True, True), (STOCK, True, True)],
)
def test_messages_are_timed_as_the_scheme_needs_or_as_is_asked(scheme, forecasts, is_measured):
    assert decide(START, MEASURED, PlanOptions(scheme, forecasts)).is_measured is is_measured


def test_joint_shares_are_an_option():
    shares = np.array([0.4, 0.3, 0.2, 0.1]) * LAYOUT.model_bytes
    decision = decide(START, MEASURED, PlanOptions(JOINT, joint_shares=shares))
    assert decision.plan.target_shares == pytest.approx(shares, abs=1)


def test_a_scheme_without_plans_is_refused_where_sums_have_two_levels():
    by_sites = replace(JOB, sites=Sites(("a", "a", "b", "b")))
    with pytest.raises(InputError, match="scheme stock has one level"):
        decide(START, replace(MEASURED, nodes=by_sites), PlanOptions(STOCK))
