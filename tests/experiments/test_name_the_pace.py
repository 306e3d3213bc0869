"""The campaign of `nalb why`: its truth by hand, and a few networks of it."""

from dataclasses import replace

import numpy as np
import pytest

import name_the_pace as campaign
from nalb.planning.nodes import Capacities, Node
from nalb.planning.sites import Sites, Uplinks
from nalb.reporting.step_costs import LimitKind, Thing
from nalb.simulation.exchange import SimulatedExchange
from nalb.simulation.families import DrawnNetwork


def test_the_truth_is_carried_bytes_over_configured_rates():
    rates = Capacities.from_lists([10.0, 20.0], [10.0, 40.0], {(0, 1): 4.0})
    network = DrawnNetwork("two", "none", (Node("n0"), Node("n1")), rates)
    case = campaign.Case(network, "exact", np.array([0.0, 3.0]), 1)
    samples = np.zeros(0, dtype=[("source", int), ("target", int), ("size_bytes", int)])
    carried = np.array([[0.0, 20.0], [60.0, 0.0]])
    truth = campaign.truth_of(case, SimulatedExchange(np.ones(2), carried, carried, samples))
    assert truth["link", "n0", "up"] == 2.0
    assert truth["link", "n0", "down"] == 6.0
    assert truth["link", "n1", "up"] == 3.0
    assert truth["link", "n1", "down"] == 0.5
    assert truth["capped pair", "n0", "n1"] == 5.0
    assert truth["computing", "n1", ""] == 3.0


def test_a_site_needs_what_crosses_its_link():
    uplinks = Uplinks(Sites(("east", "east", "west")), np.array([5.0, 2.0]), np.array([4.0, 8.0]))
    rates = replace(Capacities.from_lists([100.0] * 3, [100.0] * 3), uplinks=uplinks)
    carried = np.array([[0.0, 50.0, 10.0], [0.0, 0.0, 20.0], [8.0, 0.0, 0.0]])
    truth = campaign.transport_truth(rates, ["n0", "n1", "n2"], carried)
    assert truth["shared uplink", "east", "up"] == 6.0
    assert truth["shared uplink", "east", "down"] == 2.0
    assert truth["link", "n2", "up"] == 4.0  # alone at its site: the site's link is its own
    assert truth["link", "n2", "down"] == 3.75
    assert ("shared uplink", "west", "up") not in truth


def test_a_thing_names_its_ways():
    assert campaign.ways_of(Thing(LimitKind.LINK, "n0", "both")) == {("link", "n0", "up"), ("link", "n0", "down")}
    assert ("shared uplink", "s1", "down") in campaign.ways_of(Thing(LimitKind.WAY, "s0", "s1"))
    assert campaign.ways_of(Thing(LimitKind.COMPUTING, "n2")) == {("computing", "n2", "")}


@pytest.mark.jobs
@pytest.mark.parametrize(("family", "seed", "number"), [("heavy", 1, 0), ("adsl", 1, 1), ("even", 3, 2)])
def test_the_pace_of_a_network_is_named(family, seed, number):
    row = campaign.judged(campaign.draw_case(family, seed, number))
    assert row["is_known"]
    assert row["is_right"], row
