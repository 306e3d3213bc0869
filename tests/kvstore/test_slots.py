import ctypes
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_patch.keys.slots import (
    DIRECT_SLOTS,
    HASH_PRIME,
    KEYS_PER_TURN,
    STOCK_KEYS,
    direct_pairs,
    most_plan_slots,
    most_site_slots,
    plan_slot_key,
    site_slot_keys,
    slot_key,
)
from nalb.errors import StoreError
from tests.planning.strategies import laws

MOST_SERVERS = KEYS_PER_TURN - STOCK_KEYS
server_counts = st.one_of(st.integers(1, 1000), st.integers(1, MOST_SERVERS)).filter(lambda count: count % HASH_PRIME)


def server_of(key, num_servers):
    """C's `int server = (key * 9973) % num_servers`, as libmxnet computes it: low 32 bits, remainder with the sign."""
    return math.fmod(ctypes.c_int32(ctypes.c_int32(key).value * 9973).value, num_servers)


@st.composite
def places(draw):
    """(server, slot, number of servers)"""
    count = draw(server_counts)
    slots = DIRECT_SLOTS + most_plan_slots(count)
    return draw(st.integers(0, count - 1)), draw(st.integers(0, slots - 1)), count


@laws
@given(places())
def test_a_key_is_hashed_to_its_server_and_none_of_mxnets_own(place):
    server, _, count = place
    key = slot_key(*place)
    assert STOCK_KEYS <= key < 1 << 31
    assert server_of(key, count) == server


@laws
@given(server_counts, st.integers(0, 10**6), st.data())
def test_no_two_slots_share_a_key(count, turn_and_row, data):
    """Keys rise by at least the number of servers from slot to slot, within a range and over its end."""
    slot = turn_and_row % (DIRECT_SLOTS + most_plan_slots(count) - 1)
    servers = [data.draw(st.integers(0, count - 1)) for _ in range(2)]
    assert slot_key(servers[0], slot, count) < slot_key(servers[1], slot + 1, count)
    if servers[0] != servers[1]:
        assert slot_key(servers[0], slot, count) != slot_key(servers[1], slot, count)


@pytest.mark.parametrize("count", [1, 3, 1000, MOST_SERVERS])
def test_the_last_slot_has_a_key_and_the_next_has_none(count):
    most = most_plan_slots(count)
    assert server_of(plan_slot_key(count - 1, most - 1, count), count) == count - 1
    with pytest.raises(StoreError, match=f"slot {DIRECT_SLOTS + most} of server 0 has no key"):
        plan_slot_key(0, most, count)


def test_servers_that_the_hash_cannot_tell_apart():
    with pytest.raises(StoreError, match="use one fewer"):
        slot_key(0, 0, 2 * HASH_PRIME)


@laws
@given(st.integers(1, 1000), st.data())
def test_the_slots_of_a_site_server_have_two_keys_each_and_share_none(nodes, data):
    servers = 2 * nodes
    most = direct_pairs(nodes) + most_site_slots(nodes, servers)
    pairs = data.draw(st.lists(st.integers(0, most - 1), min_size=1, max_size=4, unique=True))
    server = data.draw(st.integers(0, servers - 1))
    keys = [key for pair in pairs for key in site_slot_keys(server, pair, servers)]
    assert len(set(keys)) == len(keys) == 2 * len(pairs)
    assert {server_of(key, servers) for key in keys} == {server}
