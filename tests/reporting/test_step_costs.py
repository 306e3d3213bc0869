"""What links, cores and workers need, against numbers computed by hand."""

from dataclasses import replace

import pytest
from msgspec import structs

from nalb.events import LayoutEvent, SharedUplinkEvent
from nalb.planning.nodes import Node
from nalb.reporting.step_costs import (
    BOTH,
    LimitKind,
    RateSource,
    StepModel,
    Thing,
    exposed_s,
    loads_bytes,
    merged,
    needs,
    nodes_of,
    scheme_of,
    shares_of,
    sites_of,
)
from tests.reporting.paced import MB, NODES, rates, step

LINK = LimitKind.LINK


def test_a_link_needs_its_load_over_its_rate():
    one = step(estimate=rates([9, 18, 18, 36], [18, 18, 18, 36]))
    found = needs(one)
    assert found[Thing(LINK, "n0", "up")] == (pytest.approx(2.0), RateSource.PROVEN)
    assert found[Thing(LINK, "n0", "down")] == (pytest.approx(1.0), RateSource.PROVEN)
    assert found[Thing(LINK, "n3", "down")] == (pytest.approx(0.5), RateSource.PROVEN)
    together = merged(found)
    assert Thing(LINK, "n0", "up") in together  # whose directions differ
    assert Thing(LINK, "n1", BOTH) in together
    assert Thing(LINK, "n1", "up") not in together


def test_a_rate_without_proof_needs_no_more_than_the_exchange():
    one = step(estimate=rates([6, 18, 18, 36]), least=rates([5, 18, 18, 36]))
    found = needs(one)
    assert found[Thing(LINK, "n0", "up")] == (2.0, RateSource.HOPED)  # 3 s by the hope, but all was done in 2 s
    assert found[Thing(LINK, "n1", "up")] == (1.0, RateSource.PROVEN)


def test_a_proven_rate_that_the_exchange_refutes_is_none():
    found = needs(step(estimate=rates([1, 18, 18, 18])))
    assert found[Thing(LINK, "n0", "up")] == (2.0, RateSource.HOPED)


def test_configured_rates_count_less_headers_where_nothing_is_measured():
    found = needs(step(configured=rates([9, 18, 18, 36])))
    assert found[Thing(LINK, "n0", "up")] == (pytest.approx(2.0 * 1514 / 1448), RateSource.CONFIGURED)


def test_what_mxnet_routes_loads_the_servers_of_its_keys():
    one = step(scheme="stock", shares={}, estimate=rates([9, 18, 18, 36]))
    assert shares_of(one) is None  # nobody tells the tensors
    tensors = [("0", 1000, "float32", 0), ("3", 500, "float32", 0)]  # key 3: 3 * 9973 mod 4 = 3
    one = replace(one, layout=LayoutEvent(at_s=0.0, model_bytes=6000, tensors=tensors))
    assert list(shares_of(one)) == [4000, 0, 0, 2000]
    assert loads_bytes(one, shares_of(one))[0] == {"n0": 14_000, "n1": 6000, "n2": 6000, "n3": 10_000}
    for scheme in ("p3", "gloo"):
        other = replace(one, event=structs.replace(one.event, scheme=scheme))
        assert shares_of(other) is None
        assert not any(thing.kind is LINK for thing in needs(other))


def test_a_ring_has_every_node_sum_an_equal_part_of_values_as_they_are():
    one = step(shares={}, has_agents=True, estimate=rates([18] * 4))
    tensors = [("0", 1000, "float32_as_int8", 0), ("3", 500, "float16", 1)]
    one = replace(one, layout=LayoutEvent(at_s=0.0, model_bytes=2000, tensors=tensors))
    assert list(shares_of(one)) == [1250] * 4
    assert loads_bytes(one, shares_of(one))[0] == dict.fromkeys(NODES, 5000 + 2 * 1250)
    assert (
        shares_of(replace(one, ready=structs.replace(one.ready, sites=dict.fromkeys(NODES, "a") | {"n3": "b"}))) is None
    )


def test_agents_of_a_site_push_no_zeros():
    sites = {"n0": "a", "n1": "a", "n2": "b", "n3": "c"}
    assert [sites_of(step(sites=sites, has_agents=one)).pushes_zeros for one in (False, True)] == [True, False]


def test_declared_sites_need_what_crosses_their_uplinks_where_sums_have_one_level():
    sites = {"n0": "east", "n1": "east", "n2": "west", "n3": "south"}
    uplinks = {"east": (20 * MB, 40 * MB), "west": (90 * MB, 90 * MB), "south": (90 * MB, 90 * MB)}
    found = needs(step(configured=rates([10, 10, 90, 90], uplinks=uplinks, site_of=sites)))
    crosses_s = (
        (2 * 6 + 2 * 6) * 1514 / 1448
    )  # both workers for both servers elsewhere, and the other way round; of 1 MB/s
    up, down = (found[Thing(LimitKind.UPLINK, "east", direction)] for direction in ("up", "down"))
    assert up == (pytest.approx(crosses_s / 20), RateSource.CONFIGURED)
    assert down == (pytest.approx(crosses_s / 40), RateSource.CONFIGURED)
    assert not any(thing.where in ("n0", "n1", "west") and thing.kind is not LimitKind.COMPUTING for thing in found)
    assert found[Thing(LINK, "n2", "up")] == (pytest.approx(18 * 1514 / 1448 / 90), RateSource.CONFIGURED)


@pytest.mark.parametrize(("members", "others"), [(["n0", "n1"], ["n2", "n3"]), (["n2", "n3"], ["n0", "n1"])])
def test_an_uplink_that_is_declared_has_no_second_row_where_it_is_noticed(members, others):
    """A search for shared uplinks may find it, and cannot tell the side."""
    sites = {"n0": "east", "n1": "east", "n2": "west", "n3": "west"}
    one = step(configured=rates([90] * 4, uplinks={"east": (20 * MB, 40 * MB)}, site_of=sites))
    noticed = SharedUplinkEvent(
        at_s=0.0, iteration=1, nodes=members, others=others, up_bytes_per_s=12 * MB, down_bytes_per_s=24 * MB
    )
    assert needs(one, [noticed]) == needs(one)


def test_pairs_cores_and_shared_uplinks():
    group = SharedUplinkEvent(
        at_s=0.0, iteration=1, nodes=["n0", "n1"], others=["n2", "n3"], up_bytes_per_s=12 * MB, down_bytes_per_s=24 * MB
    )
    one = step(estimate=rates([18] * 4, pairs=[("n0", "n3", 4 * MB)]), cores_s={"n2": 1.5, "n1": 0.0})
    found = needs(one, [group])
    assert found[Thing(LimitKind.PAIR, "n0", "n3")][0] == pytest.approx(6 / 4)
    assert found[Thing(LimitKind.CORES, "n2")][0] == 1.5
    assert Thing(LimitKind.CORES, "n1") not in found
    # two workers push 6 MB each to the other side, and get 6 MB each from it; so do the others
    thing = Thing(LimitKind.UPLINK, "n0, n1", BOTH)
    assert found[thing][0] == pytest.approx(24 / 12)
    assert thing.words == "the uplink that n0, n1 share"


def test_workers_compute_and_wait():
    found = needs(step(computing_s=[0.5, 1.5, 0.0, 1.0], round_trip_s=0.1))
    computing = [found[Thing(LimitKind.COMPUTING, node)][0] for node in NODES]
    assert computing == pytest.approx([0.5, 1.5, 0.0, 1.0])
    assert found[Thing(LimitKind.PLANS)][0] == pytest.approx(0.01)  # the others wait for the slowest worker
    assert found[Thing(LimitKind.DELAY)][0] == pytest.approx(0.3)
    long = step(round_trip_s=10.0)
    assert needs(long)[Thing(LimitKind.DELAY)][0] == long.communication_s, "no longer than the whole exchange"


@pytest.mark.parametrize("wait_s", [0.0, 0.01, 1.5])
def test_computing_that_goes_on_while_gradients_travel_hides_them(wait_s):
    one = step()
    waits, late = dict.fromkeys(NODES, wait_s), dict.fromkeys(NODES, one.event.finished_s["n0"] - 0.25)
    one = replace(one, event=structs.replace(one.event, plan_wait_s=waits, computed_s=late))
    assert exposed_s(one) == pytest.approx(0.25)
    found = needs(one)
    assert found[Thing(LimitKind.COMPUTING, "n0")][0] == pytest.approx(1.75 - wait_s)
    assert found.get(Thing(LimitKind.PLANS), (0.0,))[0] == wait_s  # with both and what shows, all 2 s once
    unknown = replace(one, event=structs.replace(one.event, computed_s={}))
    assert exposed_s(unknown) == unknown.communication_s == 2.0


def test_sites_share_their_uplinks_and_lans():
    sites = {"n0": "a", "n1": "a", "n2": "b", "n3": "c"}
    uplinks = {"a": (8 * MB, 12 * MB), "b": (18 * MB, 18 * MB), "c": (9 * MB, 18 * MB)}
    one = step(sites=sites, estimate=rates([50] * 4, uplinks=uplinks), load_bytes={"n0": 20 * MB, "n1": 25 * MB})
    assert sites_of(one).names == ("a", "b", "c")
    found = needs(one)
    # M + (S - 2) m_s: 12 + 6 of a, 12 + 3 of b and c
    assert found[Thing(LimitKind.UPLINK, "a", "down")][0] == pytest.approx(18 / 12)
    assert found[Thing(LINK, "n1", "up")][0] == pytest.approx(25 / 50)
    assert found[Thing(LINK, "n3", "up")][0] == pytest.approx(15 / 50)  # its own link is its site's


def test_of_two_ends_only_the_way_between_is_known():
    two = {"n0": 6 * MB, "n1": 6 * MB}
    one = step(nodes=["n0", "n1"], shares=two, estimate=rates([12, 6], [24, 8]), exchange_s=2.0)
    found = needs(one)
    assert not any(thing.kind is LINK for thing in found)
    assert found[Thing(LimitKind.WAY, "n0", "n1")][0] == pytest.approx(12 / 8)  # out of n0 at 12, into n1 at 8
    assert found[Thing(LimitKind.WAY, "n1", "n0")][0] == pytest.approx(2.0)
    model = StepModel.of(one)
    assert model.least_s(Thing(LimitKind.WAY, "n1", "n0")) == pytest.approx(12 / 8)
    assert nodes_of(one) == [Node("n0"), Node("n1")]


def test_the_model_plans_anew_with_one_thing_faster():
    one = step(scheme="exact+forecasts@4096", estimate=rates([9, 18, 18, 18]))
    assert scheme_of(one).name == "exact"
    model = StepModel.of(one)
    assert model.follows
    assert model.least_s() == pytest.approx(12 / 9)  # n0's own gradients alone
    assert model.least_s(Thing(LINK, "n0", "up")) == pytest.approx(12 / 9)  # its other direction stays
    assert model.least_s(Thing(LINK, "n0", BOTH)) == pytest.approx(1.0)
    assert not StepModel.of(step(estimate=rates([9] * 4))).follows
    assert not StepModel.of(step(scheme="exact", estimate=rates([9] * 4), measured=False)).follows, "equal shares"
    assert StepModel.of(step()) is None
    capped = StepModel.of(step(scheme="exact", estimate=rates([18] * 4, pairs=[("n0", "n1", MB)])))
    slow = capped.least_s()
    assert slow > capped.least_s(Thing(LimitKind.PAIR, "n0", "n1")) > 1.0
    cores = dict.fromkeys(NODES, 3.0)
    full = StepModel.of(step(scheme="exact", estimate=rates([18] * 4), cores_s=cores))
    assert full.least_s() == pytest.approx(3.0)
    assert full.least_s(Thing(LimitKind.CORES, "n0")) < 3.0


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (Thing(LINK, "n3", "up"), "n3's uplink"),
        (Thing(LINK, "n3", BOTH), "n3's link (up and down)"),
        (Thing(LimitKind.UPLINK, "east", "down"), "the uplink that east shares, down"),
        (Thing(LimitKind.PAIR, "n0", "n1"), "the way from n0 to n1"),
        (Thing(LimitKind.CORES, "n2"), "n2's cores"),
        (Thing(LimitKind.PLANS), "waiting for plans"),
    ],
)
def test_things_are_called_by_name(thing, words):
    assert thing.words == words
