"""A job by sites, driven by hand: two machines at one site, one at another."""

from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from nalb.errors import InputError
from nalb.events import PlanEvent, ReadyEvent
from nalb.failures import Cause
from nalb.planning.nodes import Node
from nalb.planning.sites import Sites
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from tests.protocol.test_coordinator import TENSORS, Driver

SITES = {
    "NALB_NODE": "n0",
    "NALB_SITES": "n0=east,n1=east,n2=west",
    "DMLC_NUM_WORKER": "3",
    "DMLC_NUM_SERVER": "5",
    "NALB_SCHEME": "exact",
}
# Ranks of servers are not in the order of nodes: ps-lite gives them by address and port.
GLOBAL_RANKS, SITE_RANKS = {"n0": 4, "n1": 0, "n2": 2}, {"n0": 1, "n1": 3}


def register(driver):
    """Everyone comes, and every worker says what it pushes."""
    servers = [("global server", node, rank) for node, rank in GLOBAL_RANKS.items()]
    servers += [("site server", node, rank) for node, rank in SITE_RANKS.items()]
    for role, node, rank in servers:
        driver.say(f"s{rank}", wire.Hello(wire.VERSION, role, node, rank, 1))
    for rank in range(3):
        driver.say(f"w{rank}", wire.Hello(wire.VERSION, "worker", f"n{rank}", rank, 1))
    for rank in range(3):
        driver.say(f"w{rank}", m.Register(TENSORS))


def started():
    """Up to the first plan."""
    driver = Driver(**SITES)
    register(driver)
    driver.slots_ready()
    return driver


def test_workers_are_told_who_sums_where():
    levels = started().last("w0", wire.Welcome).levels
    assert (levels.site, levels.global_server, levels.site_server) == ([0, 0, 1], [4, 0, 2], [1, 3, -1])


def test_a_plan_names_each_slices_leader_at_each_site():
    driver = started()
    plan = driver.last("w0", m.Plan)
    node_of = {rank: node for node, rank in GLOBAL_RANKS.items()} | {rank: node for node, rank in SITE_RANKS.items()}
    owners = [node_of[rank] for rank in plan.server_of_slice]
    east, west = plan.leaders
    assert (west.server_of_slice, west.slot_of_slice) == ([], [])  # its machine is alone
    assert set(plan.server_of_slice) <= set(GLOBAL_RANKS.values())
    assert set(east.server_of_slice) == set(SITE_RANKS.values())
    leaders = [node_of[rank] for rank in east.server_of_slice]
    assert all(owner in (leader, "n2") for owner, leader in zip(owners, leaders, strict=True))
    for servers, slots in ((plan.server_of_slice, plan.slot_of_slice), (east.server_of_slice, east.slot_of_slice)):
        assert Counter(zip(servers, slots, strict=True)).most_common(1)[0][1] == 1  # a slot sums one slice


def test_events_tell_servers_by_their_place_among_those_that_sum_for_all():
    driver = started()
    (ready,) = (event for event in driver.state.events if isinstance(event, ReadyEvent))
    (told,) = (event for event in driver.state.events if isinstance(event, PlanEvent))
    node_of = {rank: node for node, rank in GLOBAL_RANKS.items()}
    owners = [node_of[rank] for rank in driver.last("w0", m.Plan).server_of_slice]
    assert [ready.servers[place] for place in told.server_of_slice] == owners


def test_each_worker_makes_the_slots_of_its_own_nodes_servers():
    driver = started()
    plan = driver.last("w0", m.Plan)
    made = {f"w{i}": {new.server for new in driver.last(f"w{i}", m.PrepareSlots).slots} for i in range(3)}
    assert made == {
        f"w{i}": {ranks[f"n{i}"] for ranks in (GLOBAL_RANKS, SITE_RANKS) if f"n{i}" in ranks} for i in range(3)
    }
    new = [one for i in range(3) for one in driver.last(f"w{i}", m.PrepareSlots).slots]
    there = {(one.server, one.first + k) for one in new for k in range(one.count)}
    asked = set(zip(plan.server_of_slice, plan.slot_of_slice, strict=True))
    asked |= set(zip(plan.leaders[0].server_of_slice, plan.leaders[0].slot_of_slice, strict=True))
    assert there == asked


def test_mxnets_own_routing_is_refused():
    driver = Driver(**SITES, NALB_HOLD="1")
    driver.say("observer", wire.RunBlock("stock", 1))
    register(driver)
    assert driver.state.verdict is not None
    assert driver.state.verdict.cause is Cause.REFUSED


NAMES = ["n0", "n1", "n2"]
UPLINKS = {"east": (20.0, 30.0), "west": (20.0, 30.0)}
CONFIGURED = wire.Configured(
    dict.fromkeys(NAMES, 90.0), dict.fromkeys(NAMES, 80.0), [], {"n0": "east", "n1": "east"}, {"east": (20.0, 30.0)}
)


def test_configured_rates_by_sites_have_uplinks():
    known = CONFIGURED.capacities(NAMES, Sites(("east", "east", "n2")))
    assert (known.up.tolist(), known.down.tolist()) == ([90.0] * 3, [80.0] * 3)
    assert known.uplinks is not None
    assert known.uplinks.up.tolist() == [20.0, np.inf]
    assert known.uplinks.down.tolist() == [30.0, np.inf]


def test_sums_by_sites_ignore_configured_caps_of_pairs():
    configured = replace(CONFIGURED, pairs=[("n0", "n2", 5.0)])
    known = configured.capacities(NAMES, Sites(("east", "east", "n2")))
    assert (dict(known.pairs), known.uplinks is not None) == ({}, True)
    assert configured.capacities(NAMES).pairs == {(0, 2): 5.0}
    driver = Driver(**SITES, NALB_HOLD="1")
    driver.say("observer", replace(configured, site={"n0": "east", "n1": "east", "n2": "west"}, uplinks=UPLINKS))
    driver.say("observer", wire.RunBlock("exact", 1))
    register(driver)
    assert driver.state.verdict is None


def test_on_one_level_machines_have_their_part_of_the_uplink():
    known = CONFIGURED.capacities(NAMES)
    assert (known.up.tolist(), known.down.tolist()) == ([10.0, 10.0, 90.0], [15.0, 15.0, 80.0])


def test_in_one_site_no_machine_needs_the_uplink():
    sites = dict.fromkeys(NAMES, "east")
    known = replace(CONFIGURED, site=sites).for_bound([Node(name) for name in NAMES], pushes_zeros=True)
    assert (known.up.tolist(), known.down.tolist()) == ([90.0] * 3, [80.0] * 3)


def test_configured_rates_without_an_uplink_are_refused():
    with pytest.raises(InputError, match="no uplink of east"):
        wire.Configured({"n0": 1.0}, {"n0": 1.0}, [], {"n0": "east"}).capacities(["n0"])


def test_events_call_the_iterations_as_the_label_says():
    driver = Driver(NALB_LABEL="exact-sites")
    driver.start()
    plans = [event for event in driver.state.events if isinstance(event, PlanEvent)]
    assert [plan.scheme for plan in plans] == ["exact-sites"]
