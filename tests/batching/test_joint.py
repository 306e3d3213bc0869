import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from nalb.batching import joint
from nalb.batching.joint import overlapped_s, plan_after_slowest, plan_in_turn, plan_overlapped
from nalb.batching.sizes import Bounds, fastest
from nalb.batching.time_models import Polynomial
from nalb.errors import InputError
from nalb.planning.nodes import Capacities, Node, completion_s, linear_load
from nalb.planning.shares import average, exact
from nalb.units import mbps_to_bytes_per_s

from ..planning.strategies import laws, mixed_nodes, time_by_messages
from .strategies import all_sizes

MODEL_BYTES = 1e6
SOLVER_S = 1e-6  # the linear program's own tolerance is absolute, 1e-7; times here are about 1 s
few = settings(laws, max_examples=30)  # each case solves a linear program per choice of sizes
coefficients = st.floats(0.0, 1.0)


@st.composite
def cases(draw: st.DrawFn, bent: bool):
    """Nodes, a curve per worker, bounds and capacities: compute and exchange of the same order."""
    nodes = draw(mixed_nodes())[:3]
    if not any(node.is_worker for node in nodes) or not any(node.is_server for node in nodes):
        nodes = [*nodes, Node("both")]
    workers = sum(node.is_worker for node in nodes)
    powers = 4 if bent else 2
    curves = [Polynomial(tuple(draw(coefficients) / 4**k for k in range(powers))) for _ in range(workers)]
    if bent:  # a root in front: rises ever more slowly at first
        curves = [lambda x, c=curve: c(x) + 2 * np.sqrt(x) for curve in curves]
    spare = draw(st.integers(0, 4))
    bounds = Bounds.of(workers + spare, workers, most=[draw(st.integers(1 + spare, 8)) for _ in range(workers)])
    rates = [draw(st.floats(2e5, 5e6)) for _ in nodes]
    return nodes, curves, bounds, Capacities.from_lists(rates, rates[::-1])


def busy(nodes, curves, sizes):
    """Compute seconds per node."""
    seconds = np.zeros(len(nodes))
    workers = [i for i, node in enumerate(nodes) if node.is_worker]
    seconds[workers] = [curve(np.array([float(size)]))[0] for curve, size in zip(curves, sizes, strict=True)]
    return seconds


def in_turn_s(nodes, compute_s, shares_bytes, model_bytes, capacities):
    """Seconds of an iteration when each node's traffic begins as it ends computing."""
    (fixed, _), (per_share, _) = linear_load(nodes, model_bytes)
    return (compute_s + (fixed + per_share * shares_bytes) / capacities.limit).max()


def after_slowest_s(nodes, compute_s, shares_bytes, model_bytes, capacities):
    """Seconds of an iteration when the exchange begins as the slowest ends computing."""
    return compute_s.max() + completion_s(nodes, shares_bytes, model_bytes, capacities)


def least_time(nodes, compute_s, capacities):
    """The least max_i (compute_i + L_i(m) / c_i) over shares: a linear program, another way than filling."""
    (fixed, _), (per_share, _) = linear_load(nodes, MODEL_BYTES)
    rows = np.column_stack([np.diag(per_share * MODEL_BYTES / capacities.limit), -np.ones(len(nodes))])
    upper = -(compute_s + fixed / capacities.limit)
    limits = [(0, 1) if node.is_server else (0, 0) for node in nodes]
    total = np.append(np.ones(len(nodes)), 0.0)[np.newaxis, :]
    cost = np.append(np.zeros(len(nodes)), 1.0)
    return linprog(cost, rows, upper, total, [1.0], bounds=[*limits, (0, None)], method="highs").fun


@pytest.mark.parametrize("bent", [False, True])
def test_in_turn_is_the_brute_force_optimum(bent):
    @few
    @given(cases(bent))
    def law(case):
        nodes, curves, bounds, capacities = case
        plan = plan_in_turn(nodes, curves, bounds, MODEL_BYTES, capacities)
        assert bounds.keeps(plan.sizes)
        assert plan.shares_bytes.sum() == pytest.approx(MODEL_BYTES, rel=1e-9)
        assert all(share == 0 for share, node in zip(plan.shares_bytes, nodes, strict=True) if not node.is_server)
        best = min(least_time(nodes, busy(nodes, curves, sizes), capacities) for sizes in all_sizes(bounds))
        assert plan.predicted_s == pytest.approx(best, rel=1e-6, abs=SOLVER_S)
        compute_s = busy(nodes, curves, plan.sizes)
        assert in_turn_s(nodes, compute_s, plan.shares_bytes, MODEL_BYTES, capacities) == pytest.approx(
            plan.predicted_s
        )

    law()


@few
@given(cases(bent=True))
def test_after_slowest_is_the_brute_force_optimum_and_never_faster_than_in_turn(case):
    nodes, curves, bounds, capacities = case
    plan = plan_after_slowest(nodes, curves, bounds, MODEL_BYTES, capacities)
    assert bounds.keeps(plan.sizes)
    slowest = min(busy(nodes, curves, sizes).max() for sizes in all_sizes(bounds))
    best = slowest + least_time(nodes, np.zeros(len(nodes)), capacities)
    assert plan.predicted_s == pytest.approx(best, rel=1e-6, abs=SOLVER_S)
    compute_s = busy(nodes, curves, plan.sizes)
    assert plan.predicted_s == pytest.approx(
        compute_s.max() + time_by_messages(nodes, plan.shares_bytes, capacities), rel=1e-6
    )
    assert plan_in_turn(nodes, curves, bounds, MODEL_BYTES, capacities).predicted_s <= plan.predicted_s * (1 + 1e-9)


@few
@given(cases(bent=False), st.lists(st.floats(2e5, 5e6), min_size=4, max_size=4))
def test_overlapped_is_never_slower_than_best_sizes_beside_best_shares(case, ups):
    nodes, curves, bounds, capacities = case
    capacities = Capacities.from_lists(ups[: len(nodes)], capacities.down)
    plan = plan_overlapped(nodes, curves, bounds, MODEL_BYTES, capacities)
    assert bounds.keeps(plan.sizes)
    assert plan.shares_bytes.sum() == pytest.approx(MODEL_BYTES, rel=1e-9)
    apart = plan_after_slowest(nodes, curves, bounds, MODEL_BYTES, capacities)
    compute_s = busy(nodes, curves, apart.sizes)
    apart_s = overlapped_s(nodes, compute_s, apart.shares_bytes, MODEL_BYTES, capacities)
    assert plan.predicted_s <= apart_s * (1 + 1e-9)
    assert apart_s <= after_slowest_s(nodes, compute_s, apart.shares_bytes, MODEL_BYTES, capacities) * (1 + 1e-9)
    now_s = overlapped_s(nodes, busy(nodes, curves, plan.sizes), plan.shares_bytes, MODEL_BYTES, capacities)
    assert now_s == pytest.approx(plan.predicted_s)


def test_a_slow_uplink_is_given_fewer_samples_and_a_slow_downlink_not():
    """By hand: node 3 pushes 1 MB in 1 s; with 40 samples less at 0.01 s each, 0.4 s of it are over before the rest is."""
    nodes = [Node(f"n{i}") for i in range(4)]
    curves, bounds = [Polynomial((0.0, 0.01))] * 4, Bounds.of(400, 4)
    fast, slow = [1e8] * 3 + [1e8], [1e8] * 3 + [1e6]
    slow_up = plan_overlapped(nodes, curves, bounds, 1e6, Capacities.from_lists(slow, fast))
    slow_down = plan_overlapped(nodes, curves, bounds, 1e6, Capacities.from_lists(fast, slow))
    assert slow_down.sizes == (100, 100, 100, 100)
    assert slow_up.sizes[3] < 70
    assert slow_up.predicted_s < 0.9 * slow_down.predicted_s
    compute_s = np.array([1.0, 1.0, 1.0, 0.6])
    shares = np.array([1e6, 0.0, 0.0, 0.0])
    assert overlapped_s(nodes, compute_s, shares, 1e6, Capacities.from_lists(slow, fast)) == pytest.approx(1.6)


def test_straight_and_bent_searches_agree(monkeypatch):
    nodes = [Node(f"n{i}") for i in range(4)]
    curves = [Polynomial((0.1, a1)) for a1 in (0.01, 0.013, 0.022, 0.041)]
    rates = [mbps_to_bytes_per_s(rate) for rate in (220, 60, 150, 100)]
    arguments = (nodes, curves, Bounds.of(128, 4), 12.9e6, Capacities.from_lists(rates, rates))
    straight = plan_in_turn(*arguments)
    monkeypatch.setattr(joint, "STRAIGHT", -1e9)
    bent = plan_in_turn(*arguments)
    assert bent.predicted_s == pytest.approx(straight.predicted_s, rel=1e-9)


def test_uneven_links_and_machines_want_both():
    nodes = [Node(f"n{i}") for i in range(4)]
    rates = [mbps_to_bytes_per_s(rate) for rate in (200, 200, 200, 60)]
    capacities = Capacities.from_lists(rates, rates)
    curves = [Polynomial((0.02, a1)) for a1 in (0.02, 0.02, 0.06, 0.02)]
    bounds, model_bytes = Bounds.of(128, 4), 12.9e6
    equal_sizes, equal_shares = (32,) * 4, average(nodes, model_bytes)
    best_sizes, best_shares = fastest(curves, bounds)[0], exact(nodes, model_bytes, capacities)[0]
    for cost, plan in ((in_turn_s, plan_in_turn), (after_slowest_s, plan_after_slowest)):

        def time_s(sizes, shares, cost=cost):
            return cost(nodes, busy(nodes, curves, sizes), shares, model_bytes, capacities)

        together = plan(nodes, curves, bounds, model_bytes, capacities).predicted_s
        assert together <= 0.9 * time_s(equal_sizes, best_shares)
        assert together <= 0.9 * time_s(best_sizes, equal_shares)
        assert together <= time_s(best_sizes, best_shares) * (1 + 1e-9)
    in_turn = plan_in_turn(nodes, curves, bounds, model_bytes, capacities).predicted_s
    assert in_turn <= 0.9 * in_turn_s(nodes, busy(nodes, curves, best_sizes), best_shares, model_bytes, capacities)


@pytest.mark.parametrize("plan", [plan_in_turn, plan_after_slowest])
def test_what_does_not_fit_together_is_named(plan):
    nodes, capacities = [Node("a"), Node("b")], Capacities.from_lists([1.0, 1.0], [1.0, 1.0])
    with pytest.raises(InputError, match="1 compute curves and 2 bounds for 2 workers"):
        plan(nodes, [Polynomial((1.0,))], Bounds.of(4, 2), 1e6, capacities)
    with pytest.raises(InputError, match="cannot be distributed"):
        plan(nodes, [Polynomial((1.0,))] * 2, Bounds.of(4, 2), 0.0, capacities)
