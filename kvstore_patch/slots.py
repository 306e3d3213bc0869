"""Keys that stock MXNet routes where we want them.

For an array below the big-array bound the worker sends key k to server (k * 9973) mod S, so the keys
k = slot * S + (server * 9973^-1 mod S) are that server's slots. Key numbers, all of one job:

    0 .. STOCK_KEYS-1     MXNet's own keys, for the schemes `stock` and `p3`
    then DIRECT_SLOTS     per server: the slots of the direct path (broadcast and first sums), see direct.py
    then                  per server: the slots of plans, numbered by the coordinator

The product k * 9973 is a 32-bit int in MXNet, which bounds the keys.
"""

from kvstore_patch.ndarrays import DTYPES
from nalb.errors import StoreError

HASH_PRIME = 9973  # KVStoreDist::EncodeDefaultKey, MXNet 1.9.1
KEY_LIMIT = (1 << 31) // HASH_PRIME  # keys from here on overflow the hash
STOCK_KEYS = 4096
PIECE_ELEMENTS = (65_536, 8_192, 1_024)  # sizes of the direct path's slots, of each dtype
DEPTH = 2  # of these, so that pushes and answers overlap
DIRECT_SLOTS = len(DTYPES) * len(PIECE_ELEMENTS) * DEPTH


def slot_key(server: int, slot: int, num_servers: int) -> int:
    """The key that stock MXNet hashes to `server`; slots count from 0 on each server. StoreError beyond the hash's range."""
    if num_servers % HASH_PRIME == 0:
        raise StoreError(
            f"{num_servers} servers cannot be addressed: MXNet's key hash has period {HASH_PRIME}; use one fewer"
        )
    first = -(-STOCK_KEYS // num_servers)
    inverse = pow(HASH_PRIME, -1, num_servers) if num_servers > 1 else 0
    key = (first + slot) * num_servers + (server * inverse) % num_servers
    if key >= KEY_LIMIT:
        raise StoreError(
            f"slot {slot} of server {server} needs key {key}, beyond MXNet's {KEY_LIMIT}: use larger slices (--alpha-bytes)"
        )
    return key


def plan_slot_key(server: int, slot: int, num_servers: int) -> int:
    """The key of a plan's slot, as the coordinator numbers them."""
    return slot_key(server, DIRECT_SLOTS + slot, num_servers)
