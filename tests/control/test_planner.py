"""Plans over many iterations, on a network that is simulated."""

import numpy as np
import pytest

from nalb.control import messages as m
from nalb.control.planner import Planner
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import bound_s
from nalb.simulation.exchange import Wire
from nalb.simulation.job import by_planner

NODES = [Node("w0", is_server=False), Node("w1", is_server=False), Node("w2", is_server=False)]
NODES += [Node("s0", is_worker=False), Node("s1", is_worker=False)]
FAST, USUAL = 125e6, 12.5e6  # bytes per second
LOW_FROM, LOW_UNTIL, END = 5, 18, 24


def planner_of(window_bytes=None):
    planner = Planner([node.name for node in NODES], {"w0", "w1", "w2"}, {"s0": 0, "s1": 1}, "capacity", window_bytes)
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e4)
    return planner


def network(rate):
    rates = [FAST] * 3 + [USUAL, rate]
    return Capacities.from_lists(rates, rates)


def iterate(planner, capacities, nodes=NODES):
    """Seconds of the next iteration, over the bound."""
    (done,) = by_planner("exact", nodes, planner.layout, capacities, 1, planner, Wire())
    return done.time_s / bound_s(nodes, planner.layout.model_bytes, capacities)


@pytest.mark.parametrize("low", [6e5, 2.5e4])
def test_a_server_that_is_no_worker_slows_down_and_recovers(low):
    """Equal shares would take 11 and 256 times the bound then; and of the slower one only probes are left, and are read."""
    planner = planner_of()
    over = [iterate(planner, network(low if LOW_FROM <= k < LOW_UNTIL else USUAL)) for k in range(END)]
    assert max(over[1:LOW_FROM]) < 1.1
    assert over[LOW_FROM] > 10
    assert max(over[LOW_FROM + 2 : LOW_UNTIL]) < 3
    assert max(over[LOW_UNTIL + 3 :]) < 1.1


@pytest.mark.parametrize("window_bytes", [0, 2_000_000])
def test_only_iterations_without_a_window_show_limits(monkeypatch, window_bytes):
    planner, free = planner_of(window_bytes), []
    observe = planner._estimator.observe
    monkeypatch.setattr(
        planner._estimator,
        "observe",
        lambda traffic, is_free, *of, **more: (free.append(is_free), observe(traffic, is_free, *of, **more)),
    )
    for _ in range(3):
        iterate(planner, network(USUAL))
    assert free == [window_bytes == 0] * 3


def test_what_elastic_learnt_of_other_tensors_is_forgotten():
    planner = planner_of()
    for _ in range(3):
        iterate(planner, network(USUAL))
    assert all(planner._observations[3:])
    planner.register([m.TensorSpec("w", 20_000, "float32", 0)], 1e4)
    assert not any(planner._observations)


def test_a_pair_that_is_found_to_be_capped_is_no_change_of_the_network():
    """Plans around it take what they should: nothing is measured anew."""
    up, down = (np.array(mbps) * 125e3 for mbps in ((100, 40, 150, 80, 120, 200), (200, 200, 150, 220, 60, 200)))
    capacities, nodes = Capacities(up, down, {(2, 5): 20 * 125e3}), [Node(f"n{i}") for i in range(6)]
    names = [node.name for node in nodes]
    planner = Planner(names, set(names), {name: rank for rank, name in enumerate(names)}, "capacity", None)
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e3)
    calm = []
    for _ in range(9):
        iterate(planner, capacities, nodes)
        calm.append(planner._calm)
    assert list(planner._estimator.estimate().pairs) == [(2, 5)]
    assert calm == sorted(calm)


@pytest.mark.parametrize("round_trip_s", [0.0, 0.2])
def test_delay_that_is_known_is_no_change_of_the_network(monkeypatch, round_trip_s):
    """Three round trips more than the links need each time, whether they are known or not."""
    nodes = [Node(f"n{i}") for i in range(4)]
    names = [node.name for node in nodes]
    planner = Planner(names, set(names), {name: rank for rank, name in enumerate(names)}, "capacity", None)
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e4)
    planner.round_trip_s = round_trip_s
    capacities, windows = Capacities.from_lists([37.5e6] * 3 + [20e6], [37.5e6] * 3 + [20e6]), []
    observe = planner.observe
    monkeypatch.setattr(planner, "observe", lambda samples, took_s: observe(samples, took_s + 3 * 0.2))
    for _ in range(6):
        iterate(planner, capacities, nodes)
        windows.append(planner._sent_window)
    assert planner._links_set_pace == (round_trip_s > 0)  # else what takes so much longer is no matter of links
    if round_trip_s:  # nothing is known of the first; then what the fastest can have on its way
        assert windows == [0] + 5 * [pytest.approx(2 / 3 * 37.5e6 * 0.2, rel=0.05)]
        assert planner._calm == 9
