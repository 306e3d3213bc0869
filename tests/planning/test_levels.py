"""Two levels: loads held against the messages themselves, shares against a linear program, plans against their laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from nalb.errors import InputError
from nalb.planning.distribution import Situation
from nalb.planning.leaders import SitePlan, choose_leaders
from nalb.planning.levels import even_led_bytes, lan_load_bytes, least_led_bytes, levels_s, uplink_load_bytes
from nalb.planning.nodes import Capacities, Node, completion_s
from nalb.planning.shares import average, bound_s, exact, level_bounds_s, pairwise
from nalb.planning.sites import Sites, Uplinks
from nalb.planning.slices import Tensor, build_layout, wire_dtype
from nalb.schemes import decide
from tests.planning.strategies import laws, simple_layout

MBPS = 125_000.0  # bytes per second


def by_sites(
    sizes: list[int], up: list[float], lan: list[float], pushes_zeros: bool = True
) -> tuple[list[Node], Capacities]:
    """Sites of these sizes; rates of uplinks and machines in Mbit/s, both ways."""
    sites = Sites(tuple(f"s{site}" for site, size in enumerate(sizes) for _ in range(size)), pushes_zeros)
    uplinks = Uplinks(sites, MBPS * np.array(up), MBPS * np.array(up))
    rates = MBPS * np.array(lan)
    return [Node(f"n{i}") for i in range(sum(sizes))], Capacities(rates, rates, {}, None, uplinks)


def carried(plan: SitePlan, owner_of_slice: list[int], sizes_bytes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """(each way of each uplink, shape (2, S); out of and into each node, shape (2, N)), message by message."""
    sites = plan.sites
    uplink, lan = np.zeros((2, sites.count)), np.zeros((2, len(sites.of_node)))

    def send(source: int, target: int, size: float) -> None:
        if source != target:
            lan[0, source] += size
            lan[1, target] += size
        if (there := sites.of_node[source]) != (here := sites.of_node[target]):
            uplink[0, there] += size
            uplink[1, here] += size

    for index, (owner, size) in enumerate(zip(owner_of_slice, sizes_bytes, strict=True)):
        for site, members in enumerate(sites.members):
            leader = plan.leader_of_slice[site][index]
            assert leader in members
            send(leader, owner, size)
            send(owner, leader, size)
            for member in members:
                send(member, leader, size)  # to be summed
                send(member, leader, sites.pushes_zeros * size)
                send(leader, member, size)  # the result
    return uplink, lan


@st.composite
def networks_of_sites(draw: st.DrawFn) -> tuple[list[Node], Capacities]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5).filter(lambda found: max(found) > 1))
    rate = st.floats(1, 1000)
    up = draw(st.lists(st.one_of(rate, st.just(float("inf"))), min_size=len(sizes), max_size=len(sizes)))
    return by_sites(sizes, up, draw(st.lists(rate, min_size=sum(sizes), max_size=sum(sizes))), draw(st.booleans()))


def least_s(capacities: Capacities, model_bytes: float) -> float:
    """The least time by a linear program in T, r and m, in parts of the model: its solver's tolerance is absolute."""
    uplinks = capacities.uplinks
    assert uplinks is not None
    sites, nodes = uplinks.sites, len(capacities.up)
    zeros = int(sites.pushes_zeros)
    wide = 1 + 2 * nodes
    upper, most, equal = [], [], []

    def limit(rate: float, fixed: float, led: dict[int, float], owned: list[int]) -> None:
        row = np.zeros(wide)
        row[0] = -rate / model_bytes
        for node, bytes_ in led.items():
            row[1 + node] = bytes_
        row[[1 + nodes + node for node in owned]] = sites.count - 2
        upper.append(row)
        most.append(-fixed)

    for site, members in enumerate(sites.members):
        count = len(members)
        if np.isfinite(uplinks.up[site]):
            limit(min(uplinks.up[site], uplinks.down[site]), 1, {}, list(members))
        all_led = np.zeros(wide)
        all_led[[1 + node for node in members]] = 1
        equal.append(all_led)
        for node in members:
            limit(capacities.up[node], 1 + zeros, {node: count - 1 - zeros}, [node])
            limit(capacities.down[node], 1, {node: (1 + zeros) * (count - 1)}, [node])
            leads = np.zeros(wide)
            leads[[1 + node, 1 + nodes + node]] = -1, 1
            upper.append(leads)
            most.append(0)
    all_owned = np.zeros(wide)
    all_owned[1 + nodes :] = 1
    solved = linprog(np.eye(wide)[0], upper, most, [*equal, all_owned], [1] * (sites.count + 1))
    assert solved.status == 0
    return float(solved.x[0])


@pytest.mark.jobs
@laws
@given(networks_of_sites())
def test_exact_takes_the_least_time_of_both_levels(network: tuple[list[Node], Capacities]) -> None:
    nodes, capacities = network
    shares, time_s = exact(nodes, 1e7, capacities)
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1e7)
    assert time_s == pytest.approx(least_s(capacities, 1e7), rel=1e-6)
    assert max(level_bounds_s(nodes, 1e7, capacities)) == pytest.approx(time_s)
    for other in (average(nodes, 1e7), pairwise(nodes, 1e7, capacities)):
        assert other.sum() == pytest.approx(1e7)
        assert completion_s(nodes, other, 1e7, capacities) >= time_s * (1 - 1e-9)


@pytest.mark.jobs
@laws
@given(networks_of_sites(), st.integers(1000, 300_000))
def test_plans_load_uplinks_and_lans_as_the_formulas_say(network: tuple[list[Node], Capacities], elements: int) -> None:
    nodes, capacities = network
    assert capacities.uplinks is not None
    sites, layout = capacities.uplinks.sites, simple_layout(elements, len(nodes))
    for scheme, estimated in (("exact", capacities), ("exact", None), ("average", capacities)):
        plan, _ = decide(scheme, Situation(0, nodes, layout, estimated, sites=sites))
        assert plan is not None
        assert plan.by_site is not None
        uplink, lan = carried(plan.by_site, list(plan.server_of_slice), layout.sizes_bytes.tolist())
        owned, led = (np.array(bytes_, dtype=float) for bytes_ in (plan.shares_bytes, plan.by_site.led_bytes))
        assert (led >= owned).all()
        for members in sites.members:
            assert led[list(members)].sum() == layout.model_bytes
        assert uplink == pytest.approx(np.tile(uplink_load_bytes(sites, owned, layout.model_bytes), (2, 1)))
        assert lan == pytest.approx(lan_load_bytes(sites, owned, led, layout.model_bytes))
        for site, slots in enumerate(plan.by_site.slot_of_slice):
            pairs = {
                (leader, slot, slot_class)
                for leader, slot, slot_class in zip(
                    plan.by_site.leader_of_slice[site], slots, layout.class_of_slice.tolist(), strict=False
                )
            }
            assert len(pairs) == (len(layout.slices) if len(sites.members[site]) > 1 else 0)
        for index, owner in enumerate(plan.server_of_slice):
            assert plan.by_site.leader_of_slice[sites.of_node[owner]][index] == owner


@pytest.mark.parametrize("zeros", [0, 1])
def test_a_site_sends_the_model_once_through_its_uplink(zeros: int) -> None:
    nodes, capacities = by_sites([3, 3], [60, 100], [400] * 6, bool(zeros))
    assert bound_s(nodes, 12.9e6, capacities) == pytest.approx(12.9e6 / (60 * MBPS))
    wan_s, lan_s = level_bounds_s(nodes, 12.9e6, capacities)
    assert wan_s == pytest.approx(1.72)
    assert lan_s == pytest.approx((1 + 2 * (1 + zeros) / 3) * 12.9e6 / (400 * MBPS))


def test_uplinks_share_the_sums_and_machines_what_is_left_by_their_links() -> None:
    nodes, capacities = by_sites([4, 4, 4], [100, 150, 200], [400] * 11 + [800])
    shares, _ = exact(nodes, 1e7, capacities)
    star = [Node(name) for name in "abc"]
    of_site, _ = exact(star, 1e7, Capacities.from_lists(MBPS * np.array([100, 150, 200]), [1e9] * 3))
    assert shares.reshape(3, 4).sum(axis=1) == pytest.approx(of_site)
    led = least_led_bytes(capacities.uplinks.sites, shares, 1e7, capacities.rates)  # type: ignore[union-attr]
    assert led[11] > 2 * led[8:11].max()


@laws
@given(networks_of_sites(), st.integers(0, 2**32 - 1))
def test_even_leading_takes_no_longer_than_the_least_time(network: tuple[list[Node], Capacities], seed: int) -> None:
    nodes, capacities = network
    assert capacities.uplinks is not None
    owned = 1e7 * np.random.default_rng(seed).dirichlet(np.ones(len(nodes)))
    least = least_led_bytes(capacities.uplinks.sites, owned, 1e7, capacities.rates)
    even = even_led_bytes(capacities.uplinks, owned, 1e7, capacities.rates)
    assert capacities.uplinks.sites.totals(even) == pytest.approx(np.full(capacities.uplinks.sites.count, 1e7))
    assert (even >= owned - 1).all()
    least_s, even_s = (
        max(part_s.max() for part_s in levels_s(capacities.uplinks, capacities.rates, owned, led, 1e7))
        for led in (least, even)
    )
    assert even_s <= least_s * (1 + 1e-9)


@pytest.mark.parametrize(("slow_lan", "is_even"), [(300, True), (40, False)])
def test_lans_that_are_done_early_are_used_evenly(slow_lan: float, is_even: bool) -> None:
    nodes, capacities = by_sites([4, 4, 4], [20, 25, 30], [*[400, 380, 390, 410] * 2, 400, 400, 400, slow_lan])
    assert capacities.uplinks is not None
    plan, _ = decide(
        "exact", Situation(0, nodes, simple_layout(3_000_000, 12), capacities, sites=capacities.uplinks.sites)
    )
    assert plan is not None
    assert plan.by_site is not None
    for bytes_ in (plan.shares_bytes, plan.by_site.led_bytes):
        of_site = np.array(bytes_).reshape(3, 4)
        assert (np.ptp(of_site[:2], axis=1) < 0.1 * of_site[:2].mean(axis=1)).all()
        assert (np.ptp(of_site[2]) < 0.1 * of_site[2].mean()) == is_even
    assert plan.predicted_s == pytest.approx(bound_s(nodes, 12e6, capacities), rel=0.02)


def test_equal_machines_lead_equally_and_equal_input_gives_equal_plans() -> None:
    nodes, capacities = by_sites([3, 3], [60, 100], [400] * 6)
    assert capacities.uplinks is not None
    situation = Situation(0, nodes, simple_layout(3_000_000, 6), capacities, sites=capacities.uplinks.sites)
    plan, _ = decide("exact", situation)
    assert plan is not None
    assert plan.by_site is not None
    assert np.ptp(plan.by_site.led_bytes) < 0.05 * np.mean(plan.by_site.led_bytes)
    assert decide("exact", situation)[0] == plan


def test_leaders_of_unknown_links_lead_equally() -> None:
    layout = simple_layout(1_000_000, 4)
    plan = choose_leaders(Sites(("a", "a", "b", "c")), layout, np.full(len(layout.slices), 3), None)
    assert plan.led_bytes[0] == pytest.approx(plan.led_bytes[1], rel=0.05)
    assert plan.slot_of_slice[1:] == ((), ())


@pytest.mark.parametrize("precision", ["float16", "int8", "int4"])
@pytest.mark.parametrize("elements", [1024, 1570, 2600])
def test_small_models_in_fewer_bytes_have_leaders(precision: str, elements: int) -> None:
    """Each slice is rounded up to whole bytes, so that slices have more bytes than the model."""
    nodes, capacities = by_sites([2, 2], [10, 10], [100] * 4)
    assert capacities.uplinks is not None
    tensor = Tensor("only", elements, wire_dtype("float32", precision))
    layout = build_layout([tensor], num_nodes=4, num_servers=4, alpha_bytes=1000.0)
    plan, _ = decide("exact", Situation(0, nodes, layout, capacities, sites=capacities.uplinks.sites))
    assert plan is not None
    assert plan.by_site is not None
    assert sum(plan.by_site.led_bytes) == 2 * layout.sizes_bytes.sum()


def test_what_two_levels_cannot_be_planned_for_is_refused() -> None:
    sites = Sites(("a", "a", "b"))
    rates = np.ones(3)
    with pytest.raises(InputError, match="site b has 0 bytes/s up"):
        Uplinks(sites, np.array([1.0, 0.0]), np.ones(2))
    with pytest.raises(InputError, match="3 rates down of 2 sites"):
        Uplinks(sites, np.ones(2), np.ones(3))
    uplinks = Uplinks(sites, np.ones(2), np.ones(2))
    with pytest.raises(InputError, match="caps of pairs in a network of sites"):
        Capacities(rates, rates, {(0, 1): 1.0}, None, uplinks)
    with pytest.raises(InputError, match="capacities of 2 nodes and sites of 3"):
        Capacities(np.ones(2), np.ones(2), {}, None, uplinks)
    with pytest.raises(InputError, match="without levels"):
        Capacities(rates, rates, {}, None, Uplinks(Sites(("a", "b", "c")), rates, rates))
    nodes = [Node("n0"), Node("n1", is_server=False), Node("n2")]
    with pytest.raises(InputError, match="n1: one role alone"):
        bound_s(nodes, 1e6, Capacities(rates, rates, {}, None, uplinks))
    layout = simple_layout(1000, 2)
    with pytest.raises(InputError, match="'joint' knows no sites"):
        decide("joint", Situation(0, [Node(n) for n in "abc"], layout, sites=sites))
