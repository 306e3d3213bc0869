import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from nalb.errors import InputError
from nalb.planning.filling import fill
from nalb.planning.nodes import FEW_SLICES, Capacities, CoreTimes, Node, completion_s, linear_load, load_bytes
from nalb.planning.shares import TOLERANCE, average, bound_s, exact, pairwise
from nalb.units import mbps_to_bytes_per_s

from .strategies import laws, mixed_nodes, model_sizes, networks, peers, time_by_messages, traffic_bytes

any_network = networks(mixed_nodes(), with_pairs=False)
capped_network = networks(mixed_nodes(), with_pairs=True)
SIX_MBPS = (220, 150, 100, 180, 60, 200)


def peers_at(rates_mbps, pairs_mbps=None):
    rates = [mbps_to_bytes_per_s(rate) for rate in rates_mbps]
    pairs = {pair: mbps_to_bytes_per_s(rate) for pair, rate in (pairs_mbps or {}).items()}
    return [Node(f"n{i}") for i in range(len(rates))], Capacities.from_lists(rates, rates, pairs)


def optimum_by_linear_program(nodes, model_bytes, capacities):
    """The least time, from the traffic matrices of unit shares: another formulation than the planner's."""
    servers = [i for i, node in enumerate(nodes) if node.is_server]
    columns = []
    for server in servers:
        sent = traffic_bytes(nodes, np.eye(len(nodes))[server])
        pairs = [sent[pair] / rate for pair, rate in capacities.pairs.items()]
        columns.append([*(sent.sum(axis=1) / capacities.up), *(sent.sum(axis=0) / capacities.down), *pairs])
    seconds_per_byte = np.array(columns).T
    scale = seconds_per_byte.max() or 1.0
    rows = np.column_stack([seconds_per_byte / scale, -np.ones(len(seconds_per_byte))])
    cost, total = np.append(np.zeros(len(servers)), 1.0), np.append(np.ones(len(servers)), 0.0)[None, :]
    result = linprog(cost, rows, np.zeros(len(rows)), total, [1.0], bounds=(0, None), method="highs-ds")
    assert result.status == 0
    return result.fun * scale * model_bytes


@laws
@given(capped_network, model_sizes)
def test_shares_add_up_and_only_servers_have_them(network, model_bytes):
    nodes, capacities = network
    for shares in (
        average(nodes, model_bytes),
        pairwise(nodes, model_bytes, capacities),
        exact(nodes, model_bytes, capacities)[0],
    ):
        assert shares.sum() == pytest.approx(model_bytes, rel=1e-9)
        assert (shares >= 0).all()
        assert all(share == 0 for share, node in zip(shares, nodes, strict=True) if not node.is_server)


@laws
@given(capped_network, model_sizes)
def test_exact_is_never_worse_than_average_or_pairwise(network, model_bytes):
    nodes, capacities = network
    shares, time_s = exact(nodes, model_bytes, capacities)
    assert time_by_messages(nodes, shares, capacities) == pytest.approx(time_s, rel=1e-6, abs=1e-9)
    for other in (average(nodes, model_bytes), pairwise(nodes, model_bytes, capacities)):
        assert time_s <= time_by_messages(nodes, other, capacities) * (1 + 1e-6) + 1e-9


@laws
@given(networks(peers, with_pairs=False), model_sizes)
def test_pairwise_is_never_worse_than_average(network, model_bytes):
    nodes, capacities = network
    times = [
        time_by_messages(nodes, shares, capacities)
        for shares in (pairwise(nodes, model_bytes, capacities), average(nodes, model_bytes))
    ]
    assert times[0] <= times[1] * (1 + 1e-9)


@laws
@given(any_network, model_sizes)
def test_pairwise_ends_within_its_tolerance_of_the_optimum(network, model_bytes):
    nodes, capacities = network
    _, (per_share, _) = linear_load(nodes, model_bytes)
    assume(all(b >= 0 for b, node in zip(per_share, nodes, strict=True) if node.is_server))
    time_s = completion_s(nodes, pairwise(nodes, model_bytes, capacities), model_bytes, capacities)
    assert time_s <= bound_s(nodes, model_bytes, capacities) / (1 - TOLERANCE) * (1 + 1e-9)


@laws
@given(any_network, model_sizes)
def test_exact_without_caps_is_the_linear_program(network, model_bytes):
    nodes, capacities = network
    expected = optimum_by_linear_program(nodes, model_bytes, capacities)
    assert bound_s(nodes, model_bytes, capacities) == pytest.approx(expected, rel=1e-5, abs=1e-9 * model_bytes)


# The solvers keep absolute tolerances: with rates further apart than 1 to 1000 the test would compare these.
moderate = st.floats(1e5, 1e8)


def moderate_network(nodes):
    """(nodes, up, down, pairs)."""
    per_node = st.lists(moderate, min_size=len(nodes), max_size=len(nodes))
    pair = st.sampled_from(list(itertools.permutations(range(max(2, len(nodes))), 2)))
    return st.tuples(st.just(nodes), per_node, per_node, st.dictionaries(pair, moderate, max_size=8))


@laws
@given(
    mixed_nodes().flatmap(moderate_network),
    model_sizes,
)
def test_exact_with_caps_is_the_linear_program(network, model_bytes):
    nodes, up, down, pairs = network
    capacities = Capacities.from_lists(up, down, pairs if len(nodes) > 1 else {})
    expected = optimum_by_linear_program(nodes, model_bytes, capacities)
    for found in (bound_s(nodes, model_bytes, capacities), exact(nodes, model_bytes, capacities)[1]):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-12 * model_bytes)


@pytest.mark.parametrize("pairs", [{}, {(0, 1): 20.0}, {(1, 0): 20.0, (2, 3): 5.0}])
@pytest.mark.parametrize(
    "kinds",
    [
        [(True, True)] * 4,
        [(True, True), (True, False), (True, True), (True, True)],
        [(True, False), (True, False), (False, True), (False, True)],
        [(True, True), (True, False), (False, True), (True, True)],
    ],
)
def test_exact_meets_a_grid_of_shares(pairs, kinds):
    nodes = [Node(f"n{i}", *kind) for i, kind in enumerate(kinds)]
    _, capacities = peers_at((100, 40, 70, 25), pairs)
    model_bytes, steps = 1e6, 40
    servers = [i for i, node in enumerate(nodes) if node.is_server]
    best = np.inf
    for parts in itertools.product(range(steps + 1), repeat=len(servers)):
        if sum(parts) == steps:
            shares = np.zeros(len(nodes))
            shares[servers] = np.array(parts) * model_bytes / steps
            best = min(best, time_by_messages(nodes, shares, capacities))
    bound = bound_s(nodes, model_bytes, capacities)
    assert bound <= best * (1 + 1e-6)
    assert best <= bound * 1.15  # a grid of 1/40 comes near


@laws
@given(capped_network, st.randoms(use_true_random=False))
def test_permuted_nodes_permute_the_shares(network, random):
    nodes, capacities = network
    order = list(range(len(nodes)))
    random.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    pairs = {(place[i], place[j]): rate for (i, j), rate in capacities.pairs.items()}
    permuted_nodes = [nodes[i] for i in order]
    permuted = Capacities.from_lists(capacities.up[order], capacities.down[order], pairs)
    uncapped, uncapped_permuted = (Capacities(c.up, c.down, {}) for c in (capacities, permuted))
    for scheme in (lambda n, c: exact(n, 1e6, c)[0], lambda n, _: average(n, 1e6)):
        np.testing.assert_allclose(
            scheme(permuted_nodes, uncapped_permuted), scheme(nodes, uncapped)[order], rtol=1e-6, atol=1e-3
        )
    assert bound_s(permuted_nodes, 1e6, permuted) == pytest.approx(bound_s(nodes, 1e6, capacities), rel=1e-6, abs=1e-12)


def test_permuted_nodes_permute_the_shares_with_caps():
    nodes, capacities = peers_at(SIX_MBPS, {(0, 5): 25, (3, 1): 30})
    shares, _ = exact(nodes, 94.2e6, capacities)
    order = [3, 5, 0, 2, 4, 1]
    _, permuted = peers_at([SIX_MBPS[i] for i in order], {(2, 1): 25, (0, 5): 30})
    np.testing.assert_allclose(exact(nodes, 94.2e6, permuted)[0], shares[order], rtol=1e-5, atol=100)


@pytest.mark.parametrize(("model_bytes", "expected_s"), [(12.9e6, 1.72), (94.2e6, 12.56)])
def test_bound_of_the_six_node_network(model_bytes, expected_s):
    nodes, capacities = peers_at(SIX_MBPS)
    shares, time_s = exact(nodes, model_bytes, capacities)
    assert time_s == pytest.approx(expected_s, rel=1e-9)
    assert shares[4] == 0  # 60 Mbit/s: its own gradients alone take it the whole time
    others = load_bytes(nodes, shares, model_bytes)[[0, 1, 2, 3, 5]] / capacities.limit[[0, 1, 2, 3, 5]]
    np.testing.assert_allclose(others, others[0])  # and the others are level below it
    assert others[0] < time_s


def test_equal_links_divide_nothing_by_zero():
    nodes, capacities = peers_at([100] * 5)
    with np.errstate(all="raise"):
        np.testing.assert_allclose(pairwise(nodes, 1e6, capacities), 2e5)
        np.testing.assert_allclose(exact(nodes, 1e6, capacities)[0], 2e5)


def test_corrected_equation_14_levels_two_nodes_in_one_step():
    """With three nodes, two of them already level with each other's result, one exchange settles it."""
    nodes, capacities = peers_at((80, 100, 90))
    shares = pairwise(nodes, 3e6, capacities, tolerance=1e-9)
    times = load_bytes(nodes, shares, 3e6) / capacities.limit
    np.testing.assert_allclose(times, times[0], rtol=1e-8)


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_peers_have_nothing_to_balance(count):
    nodes, capacities = peers_at((100, 10)[:count])
    np.testing.assert_allclose(pairwise(nodes, 1e6, capacities), 1e6 / count)
    shares, time_s = exact(nodes, 1e6, capacities)
    np.testing.assert_allclose(shares, 1e6 / count)
    assert time_s == pytest.approx(0.0 if count == 1 else 1e6 / mbps_to_bytes_per_s(10))


def test_the_only_worker_keeps_everything_on_its_own_server():
    nodes = [Node("n0", is_worker=False), Node("n1"), Node("n2", is_worker=False)]
    capacities = Capacities.from_lists([1e9, 1e3, 1e9], [1e9, 1e3, 1e9], {(1, 0): 1.0})
    shares, time_s = exact(nodes, 1e6, capacities)
    assert shares.tolist() == [0, 1e6, 0]
    assert time_s == 0


def test_separate_servers_share_by_capacity():
    nodes = [Node("w0", is_server=False), Node("w1", is_server=False), Node("s0", False), Node("s1", False)]
    capacities = Capacities.from_lists([1e9, 1e9, 3e6, 1e6], [1e9, 1e9, 3e6, 1e6])
    shares, time_s = exact(nodes, 1e6, capacities)
    np.testing.assert_allclose(shares, [0, 0, 7.5e5, 2.5e5])
    assert time_s == pytest.approx(0.5)
    np.testing.assert_allclose(pairwise(nodes, 1e6, capacities, 1e-6), shares, rtol=1e-5)


@pytest.mark.parametrize(("pairs", "level"), [({}, [3, 4]), ({(0, 3): 2e4}, [4])])
def test_a_server_that_is_no_worker_has_time_to_answer_its_last_slice(pairs, level):
    nodes = [*(Node(f"n{i}") for i in range(3)), Node("s0", False), Node("s1", False)]
    rates, slice_bytes = [1e7, 1e7, 1e7, 3e5, 3e5], 1e3
    capacities = Capacities.from_lists(rates, rates, pairs)
    shares, time_s = exact(nodes, 1e6, capacities, slice_bytes)
    assert time_s == pytest.approx(time_by_messages(nodes, shares, capacities))
    np.testing.assert_allclose(3 * (shares[level] + slice_bytes) / 3e5, time_s)
    both = [Node(f"n{i}") for i in range(5)]
    np.testing.assert_array_equal(exact(both, 1e6, capacities, slice_bytes)[0], exact(both, 1e6, capacities)[0])


@pytest.mark.parametrize(("slice_bytes", "late"), [(300, 300), (1000, None), (4000, 4000)])
def test_a_server_of_few_slices_may_answer_all_of_them_late_and_at_least_one(slice_bytes, late):
    """late: bytes; None: all of its share."""
    nodes = [*(Node(f"n{i}") for i in range(3)), Node("s", is_worker=False)]
    rates = [1e7, 1e7, 1e7, 1e5]
    shares, time_s = exact(nodes, 1e6, Capacities.from_lists(rates, rates), slice_bytes)
    assert (0 < shares[3] < FEW_SLICES * slice_bytes) == (slice_bytes > 300)
    assert 3 * (shares[3] + (late or shares[3])) / rates[3] == pytest.approx(time_s)


def test_a_cap_on_a_pair_moves_shares_off_both_ends():
    nodes, free = peers_at([100] * 4)
    _, capped = peers_at([100] * 4, {(0, 1): 10})
    shares, time_s = exact(nodes, 1e6, capped)
    assert (shares[0] + shares[1]) / mbps_to_bytes_per_s(10) <= time_s * (1 + 1e-6)
    assert max(shares[0], shares[1]) < min(shares[2], shares[3])
    assert time_s > bound_s(nodes, 1e6, free)


def test_a_slack_cap_changes_nothing():
    nodes, free = peers_at((100, 80, 60, 90))
    _, capped = peers_at((100, 80, 60, 90), {(0, 1): 1000})
    np.testing.assert_array_equal(exact(nodes, 1e6, capped)[0], exact(nodes, 1e6, free)[0])


def test_a_dead_node_gets_no_share():
    nodes, _ = peers_at([100] * 5)
    rates = [1e7, 1e7, 1.0, 1e7, 1e7]
    capacities = Capacities.from_lists(rates, rates)
    assert exact(nodes, 1e6, capacities)[0][2] == 0
    assert pairwise(nodes, 1e6, capacities)[2] == 0


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 1.0, float("nan")])
def test_pairwise_refuses_a_tolerance_that_never_ends(tolerance):
    nodes, capacities = peers_at([100, 50, 20])
    with pytest.raises(InputError, match="tolerance"):
        pairwise(nodes, 1e6, capacities, tolerance)


def test_fill_gives_all_to_one_vessel_that_holds_it_below_all_others():
    """Its level just below and just above differ by less than the last digit of its share."""
    start_s = np.array([[2.2746392422694894, 2.184772894872929, 0.27354190613320434, 2.5050707907506857]])
    slope_s = np.array(
        [[3.5350939633545938e-07, 3.3954296261327756e-07, 4.2512075019473967e-08, 3.893215445154748e-07]]
    )
    assert fill(start_s, slope_s, 12868904) == pytest.approx([0, 0, 12868904, 0])


@laws
@given(
    st.lists(
        st.tuples(st.floats(-5, 100), st.floats(1e-6, 10), st.floats(-5, 100), st.floats(1e-6, 10)),
        min_size=1,
        max_size=20,
    ),
    st.floats(1e-3, 1e6),
)
def test_fill_levels_the_vessels_that_hold_something(vessels, total):
    first, slope, second, steeper = (np.array(column) for column in zip(*vessels, strict=True))
    shares = fill(np.array([first, second]), np.array([slope, steeper]), total)
    assert shares.sum() == pytest.approx(total)
    full = shares > 0
    level_of = np.maximum(first + slope * shares, second + steeper * shares)
    levels = level_of[full]
    np.testing.assert_allclose(levels, levels[0], rtol=1e-6, atol=1e-6)
    assert (level_of[~full] >= levels[0] - 1e-6 * abs(levels[0]) - 1e-6).all()


def pairwise_by_search(nodes, model_bytes, capacities):
    """Algorithm 1 with the slowest and the fastest looked for anew each time."""
    shares = average(nodes, model_bytes)
    (a, _), (b, _) = linear_load(nodes, model_bytes)
    servers = [i for i, node in enumerate(nodes) if node.is_server]
    if len(servers) < 2 or (b[servers] < 0).any():
        return shares
    start, slope = a / capacities.limit, b / capacities.limit
    while True:
        times = start + slope * shares
        slow = max((i for i in servers if shares[i] > 0), key=lambda i: times[i])
        fast = min(servers, key=lambda i: times[i])
        if slope[slow] == 0 or times[slow] - times[fast] <= TOLERANCE * times[slow]:
            return shares
        both = shares[slow] + shares[fast]
        moved = slope[slow] * both + start[slow] - start[fast]
        shares[fast] = min(max(moved / (slope[fast] + slope[slow]), 0.0), both)
        shares[slow] = both - shares[fast]


@laws
@given(any_network, model_sizes)
def test_pairwise_is_the_plain_algorithm_to_the_last_bit(network, model_bytes):
    nodes, capacities = network
    np.testing.assert_array_equal(
        pairwise(nodes, model_bytes, capacities), pairwise_by_search(nodes, model_bytes, capacities)
    )


@st.composite
def networks_with_cores(draw):
    """Nodes that are workers and servers, what their links carry, and how long their cores work."""
    count = draw(st.integers(3, 8))
    rates = np.array(draw(st.lists(st.floats(1, 100), min_size=count, max_size=count)))
    fixed = np.array(draw(st.lists(st.floats(0, 2), min_size=count, max_size=count)))
    flat_or_not = st.just(0.0) | st.floats(0.001, 2)  # agents use as much whatever they sum
    slope = np.array(draw(st.lists(flat_or_not, min_size=count, max_size=count)))
    return [Node(f"n{i}") for i in range(count)], Capacities(rates, rates, {}, CoreTimes(fixed, slope))


@laws
@given(networks_with_cores())
def test_where_cores_count_exact_is_the_linear_programs_optimum_and_pairwise_is_near(network):
    nodes, capacities = network
    model_bytes, count = 10.0, len(nodes)
    shares, time_s = exact(nodes, model_bytes, capacities)
    (fixed, _), (per_share, _) = linear_load(nodes, model_bytes)
    cores = capacities.cores
    rows = [np.append(np.diag(per_share / capacities.limit)[i], -1) for i in range(count)]
    rows += [np.append(np.diag(cores.s_per_byte)[i], -1) for i in range(count)]
    base = np.concatenate([fixed / capacities.limit, cores.fixed_s])
    least = linprog(np.append(np.zeros(count), 1), rows, -base, [np.append(np.ones(count), 0)], [model_bytes]).x[-1]
    assert completion_s(nodes, shares, model_bytes, capacities) == time_s == pytest.approx(least, rel=1e-6)
    near_s = completion_s(nodes, pairwise(nodes, model_bytes, capacities), model_bytes, capacities)
    assert least * (1 - 1e-9) <= near_s <= least / (1 - TOLERANCE) * (1 + 1e-9)
