"""Finds keys that stock MXNet routes to a wanted server.

For an array below the big-array bound a worker sends key k to server h(k) mod S. h(k) is k * 9973 as a 32-bit int. C++ does not
define the result of an overflow; libmxnet 1.9.1 keeps the low 32 bits (`imul`, then `idiv`), which tests/shim/test_mxnet_job.py
checks on the real library. A key with a negative h(k) addresses no server. The other keys lie in TURNS ranges: in range t the
product has passed 2^32 t times,

    t 2^32 <= 9973 k < t 2^32 + 2^31,    h(k) = 9973 k - t 2^32.

Among any S successive keys of a range each server has exactly one, since 9973 has an inverse mod S. Such S keys are a row: one slot
on every server. The first STOCK_KEYS keys of a range stay free: those of range 0 are MXNet's own, for the schemes `stock` and
`p3`. On each server the first DIRECT_SLOTS slots belong to the direct path (broadcasts and sums without a plan,
kvstore_patch/store/direct.py). The other slots belong to plans, and the coordinator numbers them.
"""

from nalb.errors import StoreError
from nalb.planning.stock import HASH_PRIME, STOCK_KEYS

TURNS = HASH_PRIME // 2  # number of ranges whose keys are below 2^31
KEYS_PER_TURN = (1 << 31) // HASH_PRIME  # every range has at least so many keys
DTYPES = ("float16", "float32", "float64")  # dtypes that ps-lite servers can add up
PIECE_ELEMENTS = (65_536, 8_192, 1_024)  # sizes of the direct path's slots of each dtype
DEPTH = 2  # slots of each dtype and size on a server: with two, pushes and answers overlap
DIRECT_SLOTS = len(DTYPES) * len(PIECE_ELEMENTS) * DEPTH


def most_plan_slots(num_servers: int) -> int:
    """The number of slots that plans may have on one server: 263 million with 4 servers, 1,052,028 with 1,000."""
    return TURNS * _rows_per_turn(num_servers) - DIRECT_SLOTS


def slot_key(server: int, slot: int, num_servers: int) -> int:
    """The key of a server's slot, which stock MXNet hashes to that server. Slots count from 0 on each server.

    Raises StoreError where there is no such key.
    """
    if num_servers % HASH_PRIME == 0:
        raise StoreError(
            f"{num_servers} servers cannot be addressed: MXNet's key hash has period {HASH_PRIME}; use one fewer"
        )
    if slot >= DIRECT_SLOTS + most_plan_slots(num_servers):
        raise StoreError(
            f"slot {slot} of server {server} has no key: MXNet's hash leaves {most_plan_slots(num_servers)} slots of plans "
            f"on each of {num_servers} servers; please report this"
        )
    turn, row = divmod(slot, _rows_per_turn(num_servers))
    first = -(-(turn << 32) // HASH_PRIME) + STOCK_KEYS + row * num_servers
    return first + ((server + (turn << 32)) * pow(HASH_PRIME, -1, num_servers) - first) % num_servers


def plan_slot_key(server: int, slot: int, num_servers: int) -> int:
    """The key of a plan's slot on a server, by the coordinator's numbers."""
    return slot_key(server, DIRECT_SLOTS + slot, num_servers)


def site_slot_keys(server: int, pair: int, num_servers: int) -> tuple[int, int]:
    """The two keys of a site server's slot: one for the site's sum, one for the result on its way back.

    pair: the slot's number, from 0 on each server. The first `direct_pairs` slots belong to the direct path.
    """
    return slot_key(server, 2 * pair, num_servers), slot_key(server, 2 * pair + 1, num_servers)


def direct_pairs(num_nodes: int) -> int:
    """The number of a site server's slots that belong to the direct path, whose pieces are owned by the nodes in turn."""
    return DIRECT_SLOTS * num_nodes


def most_site_slots(num_nodes: int, num_servers: int) -> int:
    """The number of slots that plans may have on one site server."""
    return (DIRECT_SLOTS + most_plan_slots(num_servers)) // 2 - direct_pairs(num_nodes)


def _rows_per_turn(num_servers: int) -> int:
    return (KEYS_PER_TURN - STOCK_KEYS) // num_servers
