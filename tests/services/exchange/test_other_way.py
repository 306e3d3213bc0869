"""What links need for a data plane's own routing."""

import math
from dataclasses import replace

import pytest

from kvstore_patch.keys.plane import StockLoads
from nalb.feedback.routing import Routing
from nalb.measurement.rules import RULES
from nalb.planning.nodes import Capacities, completion_s
from nalb.planning.slices import Tensor, build_layout
from nalb.services.exchange.other_way import OtherWay
from tests.services.exchange.test_decision import JOB, MEASURED, NOTHING, RATES

FIRST = tuple(Tensor(f"a{k}", 1000 * (k + 1), "float32") for k in range(3))


def test_links_need_what_the_loads_take_by_lower_bounds_of_rates():
    own = OtherWay(StockLoads(JOB), Routing())
    layout = build_layout(FIRST, num_nodes=4, num_servers=4, alpha_bytes=1e4)
    assert own.links_s(MEASURED) == math.inf  # no tensors yet
    own.begin(layout, has_other_tensors=False)
    assert own.links_s(NOTHING) == math.inf  # nothing is measured
    expected_s = completion_s(JOB.nodes, StockLoads(JOB).shares(FIRST), layout.model_bytes, Capacities(*RATES, {}))
    assert own.links_s(MEASURED) == pytest.approx(expected_s)


def way_after(own, took_s):
    """Whether equal shares are the other way after plans that took so long each, at a round trip of 0.1 s."""
    for one in took_s:
        own.judge_plan(one, one, known=FAR)
    return own.is_equal


FAR = replace(MEASURED, round_trip_s=0.1)
DELAYED_S, LONG_S = 0.5, 5.0  # less than twice three round trips, and more


def test_the_other_way_is_equal_shares_once_delay_sets_the_pace_of_three_plans_in_a_row():
    own = OtherWay(StockLoads(JOB), Routing())
    assert not way_after(own, [LONG_S, LONG_S, DELAYED_S, DELAYED_S, LONG_S, DELAYED_S, DELAYED_S])
    assert own.choose(9) == 0
    assert way_after(own, [DELAYED_S])
    assert own.choose(9) == 1
    assert own.is_settled


def test_the_other_way_changes_its_kind_where_three_plans_of_a_look_ask_for_it():
    own = OtherWay(StockLoads(JOB), Routing())
    way_after(own, 3 * [DELAYED_S])
    while own.choose(1):
        own.judge(0.1)
    assert way_after(own, 2 * [LONG_S])
    assert not way_after(own, [LONG_S])
    assert own.choose(9) == 0, "what equal shares took says nothing of the data plane's own routing"


def test_a_wait_that_early_plans_will_save_does_not_count_against_plans():
    taken = []
    for early_saves_s in (0.0, 0.2):
        own = OtherWay(None, Routing())
        for _ in range(3):
            own.judge_plan(DELAYED_S + 0.2, DELAYED_S, FAR, early_saves_s)
        for _ in range(RULES.trial_iterations):
            assert own.choose(1)
            own.judge(DELAYED_S + 0.1)
        taken.append(own.choose(1))
    assert taken == [1, 0]
