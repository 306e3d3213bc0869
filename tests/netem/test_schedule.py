"""Rates over time: the same for everyone, whichever way they are asked for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from netem.network import Network
from netem.network_file import find_network, load_network
from netem.schedule import (
    TimedChange,
    access_rates_at,
    highest_total_quota,
    pair_caps_at,
    quotas_at,
    rates_at,
    site_rates_at,
    timed_changes,
)
from tests.netem.conftest import TWO_NODES, network_of

CHANGING = network_of(
    "net",
    TWO_NODES
    + """
[[links]]
src = "a"
dst = "b"
mbps = 5
[[changes]]
at_s = 3
node = "b"
down_mbps = 9
[[changes]]
at_s = 3
src = "a"
dst = "b"
mbps = 2
[[changes]]
at_s = 7.5
node = "b"
up_mbps = 11
""",
)


def drawn(seed: int, every_s: float) -> Network:
    body = f'[random]\nseed = {seed}\nevery_s = {every_s}\nlow_mbps = 20\nhigh_mbps = 220\n[[nodes]]\nname = "a"\n'
    return network_of("net", body + '[[nodes]]\nname = "b"\n')


def schedule(network: Network, until_s: float) -> list[TimedChange]:
    """The changes with 0 < at_s <= until_s."""
    return list(itertools.takewhile(lambda change: change.at_s <= until_s, timed_changes(network)))


def replay(network: Network, until_s: float):
    """Rates and caps by applying every change from 0 s: what the change clock does."""
    rates, caps = rates_at(network, 0), pair_caps_at(network, 0)
    for change in schedule(network, until_s):
        rates.update(change.node_rates)
        caps.update(change.pair_caps)
    return rates, caps


def test_listed_changes():
    assert schedule(CHANGING, 10) == [
        TimedChange(3, {"b": (100, 9)}, {("a", "b"): 2}),
        TimedChange(7.5, {"b": (11, 9)}, {}),
    ]
    assert rates_at(CHANGING, 2.9) == {"a": (100, 80), "b": (100, 80)}
    assert rates_at(CHANGING, 99) == {"a": (100, 80), "b": (11, 9)}
    assert pair_caps_at(CHANGING, 3) == {("a", "b"): 2}


@given(st.floats(0, 20))
def test_applying_the_changes_gives_the_rates_at_that_moment(until_s: float):
    assert replay(CHANGING, until_s) == (rates_at(CHANGING, until_s), pair_caps_at(CHANGING, until_s))


@given(st.integers(0, 2**64), st.sampled_from([0.1, 0.3, 1, 7.7, 20, 300]), st.integers(0, 50))
def test_draws_agree_however_asked(seed: int, every_s: float, draws: int):
    network = drawn(seed, every_s)
    until_s = every_s * draws
    changes = schedule(network, until_s)
    assert [change.at_s for change in changes] == [every_s * (draw + 1) for draw in range(draws)]
    assert replay(network, until_s)[0] == rates_at(network, until_s) == rates_at(network, until_s + every_s / 2)
    for change in changes:
        assert all(20 <= up == down <= 220 for up, down in change.node_rates.values())


def test_draws_differ_by_seed_node_and_time():
    network, other = drawn(1, 5), drawn(2, 5)
    rates = [rates_at(network, elapsed_s) for elapsed_s in (0, 5, 10)] + [rates_at(other, 0)]
    numbers = [up for each in rates for up, _ in each.values()]
    assert len(set(numbers)) == len(numbers)


def test_draws_are_the_same_on_every_machine():
    rates = rates_at(load_network(find_network("wan6-dynamic")), 0)
    assert [up_mbps for up_mbps, _ in rates.values()] == [44.78, 77.2, 60.32, 197.38, 21.07, 165.71]


def test_redraws_and_pair_changes_interleave():
    network = replace(
        drawn(3, 2), links=CHANGING.links, changes=tuple(change for change in CHANGING.changes if change.pair)
    )
    times = [change.at_s for change in schedule(network, 6)]
    assert times == [2, 3, 4, 6]
    assert replay(network, 6) == (rates_at(network, 6), {("a", "b"): 2})


@pytest.mark.parametrize("name", ["wan4-static", "wan6-asymmetric"])
def test_a_static_network_never_changes(name: str):
    assert list(timed_changes(load_network(find_network(name)))) == []


UNEVEN = network_of(
    "net",
    TWO_NODES
    + """
cpu_quota = 0.5
[[changes]]
at_s = 3
node = "b"
down_mbps = 9
[[cpu_changes]]
at_s = 3
node = "b"
cpu_quota = 0.25
[[cpu_changes]]
at_s = 4
node = "a"
cpu_quota = 1
[[cpu_changes]]
at_s = 5
node = "b"
cpu_quota = 0.1
""",
)


def test_cpu_changes_come_with_the_changes_of_the_same_moment():
    assert schedule(UNEVEN, 4) == [
        TimedChange(3, {"b": (100, 9)}, {}, {"b": 0.25}),
        TimedChange(4, {}, {}, {"a": 1}),
    ]
    assert quotas_at(UNEVEN, 0) == {"a": None, "b": 0.5}
    assert quotas_at(UNEVEN, 4.5) == {"a": 1, "b": 0.25}
    assert highest_total_quota(UNEVEN) == 1.25


@given(st.integers(0, 5), st.sampled_from([0.5, 1.5, 2.0]), st.integers(0, 80))
def test_drawn_quotas_are_the_same_whichever_way_they_are_asked_for(seed: int, every_s: float, quarters: int):
    until_s = quarters / 4
    cpu = f"[cpu_random]\nseed = {seed}\nevery_s = {every_s}\nlow_cpu_quota = 0.1\nhigh_cpu_quota = 0.6\n"
    network = replace(drawn(seed, 2), cpu_random=network_of("net", TWO_NODES + cpu).cpu_random)
    quotas = quotas_at(network, 0)
    for change in schedule(network, until_s):
        quotas.update(change.cpu_quotas)
    assert quotas == quotas_at(network, until_s)
    assert all(0.1 <= quota <= 0.6 for quota in quotas.values())
    assert replay(network, until_s)[0] == rates_at(network, until_s), "beside the drawn rates"
    assert highest_total_quota(network) == 1.2


def test_drawn_quotas_are_the_same_on_every_machine():
    cpu = "[cpu_random]\nseed = 7\nevery_s = 5\nlow_cpu_quota = 0.1\nhigh_cpu_quota = 0.6\n"
    network = network_of("net", TWO_NODES + cpu)
    assert [list(quotas_at(network, elapsed_s).values()) for elapsed_s in (0, 4.9, 5)] == [
        [0.32, 0.177],
        [0.32, 0.177],
        [0.459, 0.223],
    ]


SITES = (
    '[[sites]]\nname = "s"\n[[nodes]]\nname = "a"\nsite = "s"\nup_mbps = 400\ndown_mbps = 400\n[[nodes]]\nname = "b"\n'
)
RATES = "up_mbps = {}\ndown_mbps = {}\n"


def test_sites_change_at_their_time():
    body = SITES.replace('"s"\n', '"s"\n' + RATES.format(50, 60), 1) + RATES.format(30, 40)
    network = network_of("net", body + '[[changes]]\nat_s = 3\nsite = "s"\nup_mbps = 9\n')
    assert schedule(network, 10) == [TimedChange(3, {}, {}, site_rates={"s": (9, 60)})]
    assert [site_rates_at(network, elapsed_s) for elapsed_s in (2.9, 3)] == [{"s": (50, 60)}, {"s": (9, 60)}]
    assert rates_at(network, 3) == {"a": (400, 400), "b": (30, 40)}


def test_draws_reach_sites_and_leave_their_lans():
    drawn = "[random]\nseed = 1\nevery_s = 5\nlow_mbps = 20\nhigh_mbps = 220\n"
    network = network_of("net", drawn + SITES)
    [change] = schedule(network, 5)
    assert change.node_rates.keys() == {"b"}
    assert change.site_rates.keys() == {"s"}
    assert access_rates_at(network, 5) == {"a": (400, 400)} | change.node_rates | change.site_rates
    assert site_rates_at(network, 0) != change.site_rates
