import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.planning.distribution import DecisionKind, Situation
from nalb.planning.elastic import ServerObservation
from nalb.planning.nodes import Capacities, CoreTimes, Node, completion_s
from nalb.planning.shares import average, bound_s
from nalb.planning.slices import Tensor, build_layout
from nalb.schemes import SCHEMES, Scheme, decide
from nalb.units import mbps_to_bytes_per_s
from tests.planning.strategies import laws, mixed_nodes, networks, peers, simple_layout, tensor_lists, time_by_messages

PLANNED = sorted(name for name, scheme in SCHEMES.items() if not scheme.routes_itself)
SIX_MBPS = (220, 150, 100, 180, 60, 200)
SIX = [Node(f"n{i}") for i in range(6)]
RATES = [mbps_to_bytes_per_s(rate) for rate in SIX_MBPS]
CAPACITIES = Capacities.from_lists(RATES, RATES)
RESNET = simple_layout(23_550_000, 6)


def watched(loads, times):
    return [[ServerObservation(load, time) for load, time in zip(loads, times, strict=True)]] * 6


@laws
@given(st.sampled_from(PLANNED), networks(mixed_nodes(), with_pairs=True), tensor_lists())
def test_every_scheme_places_every_byte_on_a_server(scheme, network, tensors):
    nodes, capacities = network
    servers = sum(node.is_server for node in nodes)
    layout = build_layout(tensors, num_nodes=len(nodes), num_servers=servers, alpha_bytes=4000.0)
    plan, reason = decide(scheme, Situation(7, nodes, layout, capacities, capacities))
    assert plan is not None
    chosen = "exact" if scheme == "auto" else scheme
    assert (plan.scheme, plan.iteration, plan.reason) == (chosen, 7, reason)
    held = [0] * len(nodes)
    for piece, server in zip(layout.slices, plan.server_of_slice, strict=True):
        assert nodes[server].is_server
        held[server] += piece.size_bytes
    assert tuple(held) == plan.shares_bytes
    assert sum(held) == sum(plan.target_bytes) == layout.model_bytes
    slots = zip(plan.server_of_slice, layout.class_of_slice, plan.slot_of_slice, strict=True)
    assert len(set(slots)) == len(layout.slices)
    assert plan.bound_s <= plan.predicted_s * (1 + 1e-6) + 1e-9
    expected = time_by_messages(nodes, np.array(held, dtype=float), capacities)
    assert plan.predicted_s == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("scheme", PLANNED)
def test_same_input_same_plan(scheme):
    situation = Situation(3, SIX, RESNET, CAPACITIES, CAPACITIES, watched((1e6, 2e6), (1.0, 2.0)))
    assert decide(scheme, situation) == decide(scheme, situation)


EQUAL = average(SIX, RESNET.model_bytes)
UNEVEN = EQUAL * [1.5, 0.5, 1, 1, 1, 1]
MEASURED, DISTRUSTED = (
    Situation(0, SIX, RESNET, CAPACITIES),
    Situation(0, SIX, RESNET, CAPACITIES, links_set_pace=False),
)


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("shares", [EQUAL, np.round(EQUAL * 8) / 8, UNEVEN])
@pytest.mark.parametrize("reason", ["equal shares until every node is measured", "anything"])
@pytest.mark.parametrize(
    ("situation", "need"),
    [
        (Situation(0, SIX, RESNET), DecisionKind.UNMEASURED),
        (DISTRUSTED, DecisionKind.DISTRUSTED),
        (MEASURED, DecisionKind.PLANNED),
    ],
)
def test_what_is_known_and_what_came_of_it_tell_a_decisions_kind(situation, need, reason, shares, follows):
    plan, _ = Scheme("mine", lambda _: (shares, reason), follows_estimates=follows).plan(situation)
    by_need = follows and shares is not UNEVEN
    assert plan.kind is (need if by_need else DecisionKind.PLANNED)


@pytest.mark.parametrize("scheme", ["aware", "exact", "joint"])
def test_nalbs_own_equal_shares_say_why_they_are(scheme):
    before, distrusted = decide(scheme, Situation(0, SIX, RESNET))[0], decide(scheme, DISTRUSTED)[0]
    assert (before.kind, distrusted.kind) == (DecisionKind.UNMEASURED, DecisionKind.DISTRUSTED)
    assert before.reason != distrusted.reason
    assert decide(scheme, MEASURED)[0].kind is DecisionKind.PLANNED


@pytest.mark.parametrize("scheme", ["aware", "exact", "elastic", "average"])
def test_unmeasured_means_equal_shares_and_says_so(scheme):
    plan, reason = decide(scheme, Situation(0, SIX, RESNET))
    np.testing.assert_allclose(plan.target_bytes, average(SIX, RESNET.model_bytes), atol=1)
    assert "equal shares" in reason
    assert plan.predicted_s is None
    assert plan.bound_s is None


def test_joint_takes_the_shares_of_the_joint_plan_once_the_links_are_measured():
    wanted = np.array([0.4, 0.1, 0.2, 0.1, 0.0, 0.2]) * RESNET.model_bytes
    plan, reason = decide("joint", Situation(1, SIX, RESNET, CAPACITIES, joint_shares=wanted))
    np.testing.assert_allclose(plan.target_bytes, wanted, atol=1)
    assert reason == "least time of machines and links together"
    before, _ = decide("joint", Situation(1, SIX, RESNET, joint_shares=wanted))
    np.testing.assert_allclose(before.target_bytes, average(SIX, RESNET.model_bytes), atol=1)
    alone, _ = decide("joint", Situation(1, SIX, RESNET, CAPACITIES))
    assert alone.target_bytes == decide("exact", Situation(1, SIX, RESNET, CAPACITIES))[0].target_bytes


def test_oracle_needs_configured_rates():
    with pytest.raises(InputError, match="--network"):
        decide("oracle", Situation(0, SIX, RESNET, estimated=CAPACITIES))


def test_unknown_scheme_names_the_known():
    with pytest.raises(InputError, match="auto, stock, p3, average, elastic, aware, exact, oracle"):
        decide("best", Situation(0, SIX, RESNET))


def test_oracle_follows_the_configured_and_exact_the_estimated_rates():
    wrong = Capacities.from_lists(RATES[::-1], RATES[::-1])
    situation = Situation(0, SIX, RESNET, estimated=wrong, configured=CAPACITIES)
    oracle, exact = decide("oracle", situation)[0], decide("exact", situation)[0]
    assert oracle.target_bytes[0] == max(oracle.target_bytes)
    assert exact.target_bytes[5] == max(exact.target_bytes)
    assert oracle.bound_s == pytest.approx(bound_s(SIX, RESNET.model_bytes, CAPACITIES))


def test_whole_slices_and_probes_stay_near_the_bound():
    for scheme in ("aware", "exact", "oracle"):
        plan, _ = decide(scheme, Situation(0, SIX, RESNET, CAPACITIES, CAPACITIES))
        assert plan.predicted_s <= 1.01 * plan.bound_s


def test_a_node_without_share_still_holds_its_probes():
    plan, _ = decide("exact", Situation(0, SIX, RESNET, CAPACITIES))
    assert plan.target_bytes[4] == 0
    mine = [k for k, server in enumerate(plan.server_of_slice) if server == 4]
    assert [RESNET.slices[k].is_probe for k in mine] == [True, True]


def test_a_node_measured_as_dead_holds_its_probes_only():
    up = np.array(RATES)
    up[2] = 0.0
    estimated, _ = Capacities.from_estimates(SIX, up, np.array(RATES))
    for scheme in ("aware", "exact"):
        plan, _ = decide(scheme, Situation(0, SIX, RESNET, estimated))
        assert all(RESNET.slices[k].is_probe for k, server in enumerate(plan.server_of_slice) if server == 2)


def test_the_first_messages_go_to_every_server():
    plan, _ = decide("aware", Situation(0, SIX, RESNET, CAPACITIES))
    assert sorted(plan.server_of_slice[:6]) == [0, 1, 2, 3, 4, 5]


def test_the_order_is_no_incast():
    """Among any 20 slices in a row no server has many more than its part."""
    plan, _ = decide("exact", Situation(0, SIX, RESNET, CAPACITIES))
    servers = np.array(plan.server_of_slice)[~RESNET.is_probe]
    part = np.bincount(servers, minlength=6) / len(servers)
    for start in range(len(servers) - 20):
        counts = np.bincount(servers[start : start + 20], minlength=6)
        assert (counts <= part * 20 + 3).all()


@laws
@given(networks(peers, with_pairs=False), st.randoms(use_true_random=False))
def test_renamed_servers_rename_the_plan(network, random):
    nodes, capacities = network
    order = list(range(len(nodes)))
    random.shuffle(order)
    permuted = Capacities.from_lists(capacities.up[order], capacities.down[order])
    layout = simple_layout(2_000_000, len(nodes))
    plan, _ = decide("exact", Situation(0, nodes, layout, capacities))
    other, _ = decide("exact", Situation(0, [nodes[i] for i in order], layout, permuted))
    np.testing.assert_allclose(other.target_bytes, np.array(plan.target_bytes)[order], atol=2)
    slice_bytes = layout.sizes_bytes.max()
    np.testing.assert_allclose(other.shares_bytes, np.array(plan.shares_bytes)[order], atol=2 * slice_bytes)


@laws
@given(networks(peers, with_pairs=False))
def test_exact_is_never_worse_than_average_by_more_than_whole_slices(network):
    nodes, capacities = network
    layout = simple_layout(2_000_000, len(nodes))
    situation = Situation(0, nodes, layout, capacities)
    exact, average_plan = decide("exact", situation)[0], decide("average", situation)[0]
    slack = 2 * float(layout.sizes_bytes.max()) * len(nodes) / capacities.limit.min()
    assert exact.predicted_s <= average_plan.predicted_s + slack


def test_elastic_keeps_its_own_plan_when_it_knows_nothing_new():
    first, _ = decide("elastic", Situation(0, SIX, RESNET))
    equal = watched((first.shares_bytes[0],), (1.0,))
    plan, reason = decide("elastic", Situation(1, SIX, RESNET, observations=equal, present_bytes=first.shares_bytes))
    assert plan is None
    assert "keep" in reason


def test_elastic_learns_the_six_node_network():
    """Told the true completion of each node, it comes near the optimum of this network."""
    observations, present = [[] for _ in SIX], None
    for iteration in range(12):
        known = present and present.shares_bytes
        plan, _ = decide("elastic", Situation(iteration, SIX, RESNET, CAPACITIES, None, observations, known))
        present = plan or present
        for node, share in enumerate(present.shares_bytes):
            time_s = (RESNET.model_bytes + 4 * share) / RATES[node]
            observations[node].append(ServerObservation(share, time_s))
    shares = np.array(present.shares_bytes, dtype=float)
    assert completion_s(SIX, shares, RESNET.model_bytes, CAPACITIES) <= 1.05 * present.bound_s


def test_several_dtypes_and_groups_in_one_plan():
    tensors = [Tensor("a", 300_000, "float32"), Tensor("b", 200_000, "float16"), Tensor("c", 100_000, "float32", 1)]
    layout = build_layout(tensors, num_nodes=6, num_servers=6, alpha_bytes=4000.0)
    plan, _ = decide("exact", Situation(0, SIX, layout, CAPACITIES))
    assert sum(plan.shares_bytes) == layout.model_bytes


@pytest.mark.parametrize("scheme", ["exact", "aware"])
def test_a_node_without_cores_sums_less_and_is_named(scheme):
    rates = np.full(4, 1e7)
    cores = CoreTimes(np.full(4, 0.1), np.array([1e-8, 1e-8, 1e-8, 1e-6]))
    free, bound = (Capacities(rates, rates, {}, one) for one in (None, cores))
    layout = build_layout([Tensor("w", 3_000_000, "float32")], num_nodes=4, num_servers=4, alpha_bytes=1000)
    nodes = [Node(f"n{i}") for i in range(4)]
    plans = [decide(scheme, Situation(0, nodes, layout, estimated=one)) for one in (free, bound)]
    (before, why_before), (after, why_after) = plans
    assert after.shares_bytes[3] < 0.9 * before.shares_bytes[3]
    assert why_before == before.reason
    assert "cores" not in why_before
    assert why_after.endswith("; at their cores' limit: n3")
    wordless = Scheme("wordless", lambda _: (np.array(before.shares_bytes, dtype=float), ""), follows_estimates=True)
    plan, _ = wordless.plan(Situation(0, nodes, layout, estimated=bound))
    assert plan.reason == "at their cores' limit: n3"


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ([1.0] * 5, r"scheme mine gave shares of shape \(5,\) for 6 nodes"),
        ([1.0] * 6, "scheme mine gave shares of 6 bytes in all: they must add up to the model's 94200000"),
        ([-2e6, *[RESNET.model_bytes / 5 + 4e5] * 5], "scheme mine gave n0 a share that cannot be"),
        ([float("nan")] * 6, "scheme mine gave n0, n1, n2, n3, n4, n5 a share that cannot be"),
    ],
)
def test_shares_that_cannot_be_carried_out_are_refused(shares, says):
    mine = Scheme("mine", lambda _: (np.array(shares), "as I like"))
    with pytest.raises(InputError, match=says):
        mine.plan(Situation(0, SIX, RESNET))


def test_no_worker_is_given_a_share():
    nodes = [Node("w", is_server=False), Node("s")]
    mine = Scheme("mine", lambda situation: (np.array([0.5, 0.5]) * situation.layout.model_bytes, "half each"))
    with pytest.raises(InputError, match="scheme mine gave w a share that cannot be"):
        mine.plan(Situation(0, nodes, simple_layout(2_000_000, 1)))
