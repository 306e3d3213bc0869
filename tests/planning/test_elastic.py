import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.planning.elastic import EXPLORE_FACTOR, OBSERVATIONS_KEPT, ServerObservation, elastic, fit_line
from nalb.planning.nodes import Node

from .strategies import laws

NODES = [Node("n0"), Node("n1"), Node("n2")]
lines = st.tuples(st.floats(1e-8, 1e-5), st.floats(0, 2))


def seen(*rows):
    return [ServerObservation(load, time) for load, time in rows]


@laws
@given(lines, st.lists(st.integers(0, 10**7), min_size=2, max_size=8, unique=True))
def test_a_line_is_found_again(line, loads):
    slope, intercept = line
    observations = seen(*((load, slope * load + intercept + 1e-3) for load in loads))
    found = fit_line(observations)
    expected = np.polyfit([o.load_bytes for o in observations], [o.time_s for o in observations], 1)
    for load in loads:
        assert found[0] * load + found[1] == pytest.approx(slope * load + intercept + 1e-3, rel=1e-5, abs=1e-6)
        assert np.polyval(expected, load) == pytest.approx(found[0] * load + found[1], rel=1e-4, abs=1e-4)


@laws
@given(st.lists(lines, min_size=3, max_size=3))
def test_predicted_times_are_equal_where_there_is_a_share(servers):
    windows = [seen(*((load, a * load + b + 1e-3) for load in (1e5, 5e5))) for a, b in servers]
    shares, reason = elastic(NODES, 1e6, windows)
    assert reason == "elastic: equal predicted times"
    assert shares.sum() == pytest.approx(1e6)
    predicted = [a * share + b + 1e-3 for (a, b), share in zip(servers, shares, strict=True)]
    level = max(p for p, share in zip(predicted, shares, strict=True) if share > 1)
    for time, share in zip(predicted, shares, strict=True):
        assert time == pytest.approx(level, rel=1e-3, abs=1e-4) if share > 1 else time >= level - 1e-3


def test_nothing_seen_keeps_the_shares_and_says_whose():
    shares, reason = elastic(NODES, 1e6, [seen((1e5, 1.0)), (), seen((1e5, 1.0))])
    assert shares is None
    assert "no observation of n1" in reason
    reason = elastic([Node(f"n{i}") for i in range(1000)], 1e6, [()] * 1000)[1]
    assert reason.endswith("n7, n8, n9 and 990 more")


def test_one_load_only_is_explored_towards_the_fast():
    load = 1e6 / 3
    shares, reason = elastic(NODES, 1e6, [seen((load, 1.0)), seen((load, 2.0)), seen((load, 2.4))])
    assert "explore" in reason
    assert shares[0] > shares[1] > shares[2]
    assert shares.sum() == pytest.approx(1e6)
    assert max(shares) / min(shares) <= EXPLORE_FACTOR**2 * (1 + 1e-9)


def test_an_idle_server_is_given_something_to_learn_from():
    windows = [seen((5e5, 1.0), (6e5, 1.2)), seen((0, 0.1), (0, 0.1)), seen((5e5, 1.0), (4e5, 0.9))]
    shares, reason = elastic(NODES, 1e6, windows)
    assert "explore" in reason
    assert "n1" in reason
    assert shares[1] > 0


def test_equal_times_leave_nothing_to_explore():
    load = 1e6 / 3
    shares, reason = elastic(NODES, 1e6, [seen((load, 1.0))] * 3)
    assert shares is None
    assert "equally long" in reason


def test_a_falling_line_is_named_and_replaced_by_the_mean():
    windows = [seen((1e5, 1.0), (5e5, 0.5)), seen((1e5, 1.0), (2e5, 2.0)), seen((1e5, 1.0), (2e5, 2.0))]
    shares, reason = elastic(NODES, 1e6, windows)
    assert "mean time per byte taken for n0" in reason
    np.testing.assert_allclose(shares, 1e6 * np.array([4, 1, 1]) / 6)


def test_only_the_window_counts():
    old = seen(*[(1e5, 50.0), (9e5, 90.0)] * 5)
    new = seen(*((1e5 * k, 1.0 * k) for k in range(1, OBSERVATIONS_KEPT + 1)))
    assert elastic(NODES, 1e6, [old + new, new, new])[0].tolist() == elastic(NODES, 1e6, [new] * 3)[0].tolist()


def test_workers_need_no_observation():
    nodes = [Node("w", is_server=False), *NODES]
    windows = [(), *[seen((1e5, 1.0), (2e5, 2.0))] * 3]
    shares, _ = elastic(nodes, 1e6, windows)
    np.testing.assert_allclose(shares, [0, 1e6 / 3, 1e6 / 3, 1e6 / 3])


@pytest.mark.parametrize("row", [(-1.0, 1.0), (float("nan"), 1.0), (1.0, 0.0), (1.0, float("inf"))])
def test_impossible_observations_are_refused(row):
    with pytest.raises(InputError, match="observation"):
        ServerObservation(*row)


def test_one_window_per_node():
    with pytest.raises(InputError, match="2 windows"):
        elastic(NODES, 1e6, [(), ()])
