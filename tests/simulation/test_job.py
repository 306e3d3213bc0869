from dataclasses import replace

import numpy as np
import pytest

from nalb import workloads
from nalb.errors import InputError
from nalb.measurement.estimators import ESTIMATORS
from nalb.measurement.rules import RULES
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import bound_s
from nalb.planning.slices import Tensor, build_layout
from nalb.simulation.exchange import MessageWeight
from nalb.simulation.job import SCHEMES, by_flows, by_planner, by_slices, planner_of
from nalb.units import mbps_to_bytes_per_s

RATES = [mbps_to_bytes_per_s(rate) for rate in (200, 120, 160, 50)]
NODES = [Node(f"n{i}") for i in range(4)]
CAPACITIES = Capacities.from_lists(RATES, RATES)
TENSORS = [Tensor(t.name, t.elements, t.dtype) for t in workloads.load("mobilenet")]
LAYOUT = build_layout(TENSORS, num_nodes=4, num_servers=4, alpha_bytes=1000.0)
BOUND_S = bound_s(NODES, LAYOUT.model_bytes, CAPACITIES)


def over_bound(scheme):
    return by_slices(scheme, NODES, LAYOUT, CAPACITIES, 1, 2_000_000, MessageWeight())[0].time_s / BOUND_S


def learned(scheme, estimator, rounds, rules=RULES):
    planner = planner_of(NODES, TENSORS, 1000.0, new_estimator=ESTIMATORS[estimator], rules=rules)
    results = by_planner(scheme, NODES, LAYOUT, CAPACITIES, rounds, planner, MessageWeight())
    return [result.time_s / BOUND_S for result in results]


def test_schemes_rank_as_on_the_emulated_network():
    stock, average, aware, exact = (over_bound(s) for s in ("stock", "average", "aware", "exact"))
    assert stock > average > 1.45 > 1.1 > aware
    assert 1 <= exact < 1.05


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_capacities_are_learned_from_the_simulated_messages(estimator):
    first, *_, last = learned("exact", estimator, 5)
    assert first == pytest.approx(over_bound("average"), rel=0.01)
    assert last < 1.2


@pytest.mark.parametrize("other", [{"optimism": 1.0}, {"few_free": 2}])
def test_a_planner_follows_the_rules_that_it_is_given(other):
    """Those of the estimator, and those of trust, which say which iterations have a window."""
    assert learned("exact", "capacity", 8, replace(RULES, **other)) != learned("exact", "capacity", 8)


def test_flows_and_slices_tell_alike_where_slices_are_small():
    for scheme in SCHEMES:
        slices, flows = over_bound(scheme), by_flows(scheme, NODES, TENSORS, CAPACITIES, 1)[0] / BOUND_S
        if scheme == "stock":  # tensors of megabytes: a flow does not see that their answers wait for whole pushes
            assert 0.75 * slices < flows < slices
        else:
            assert flows == pytest.approx(slices, rel=0.05), scheme


def test_unknown_schemes_are_refused():
    with pytest.raises(InputError, match="magic"):
        by_flows("magic", NODES, TENSORS, CAPACITIES, 1)
    assert np.isfinite(by_flows("elastic", NODES, TENSORS, CAPACITIES, 3)).all()
