"""Sums without sites: every worker pushes to every server, and each array goes to one server and back."""

from collections.abc import Sequence
from typing import NamedTuple

import mxnet as mx
from mxnet.ndarray import NDArray

from kvstore_patch.keys.slots import plan_slot_key, slot_key
from kvstore_patch.store import ndarrays
from nalb.services.exchange import messages as m


class SlotRoute(NamedTuple):
    """The keys of one array's way to the servers and back, for one worker."""

    is_leader: bool  # whether this worker pushes its site's sum to the server that sums for all
    between: int  # key at the server that sums for all
    within: tuple[int, int] | None  # keys of the site's sum and of the result at the site server; None: there is none


class RoundTrip:
    """One array's way to a server and back, through the key of each call; C arguments made once."""

    __slots__ = ("_both",)

    def __init__(self, inner: mx.kvstore.KVStore, array: NDArray):
        self._both = ndarrays.PushPull(inner, [array], [array])

    def __call__(self, route: SlotRoute, priority: int) -> None:
        """Queue the array's push and pull."""
        self._both(route.between, priority)


class OneLevel:
    """The keys by which a worker reaches the servers, in a job without sites."""

    def __init__(self, inner: mx.kvstore.KVStore, num_servers: int):
        self._inner, self._num_servers = inner, num_servers
        self.columns = num_servers  # places that the direct path's pieces go to in turn: here the servers

    def journeys(self, arrays: Sequence[NDArray]) -> list[RoundTrip]:
        """The way of each array to a server and back."""
        return [RoundTrip(self._inner, array) for array in arrays]

    def route(self, plan: m.Plan, index: int) -> SlotRoute:
        """The route of slice `index` under a plan."""
        key = plan_slot_key(plan.server_of_slice[index], plan.slot_of_slice[index], self._num_servers)
        return SlotRoute(True, key, None)

    def slot_keys(self, server: int, slot: int) -> tuple[int, ...]:
        """The keys of a plan's slot on a server: here one."""
        return (plan_slot_key(server, slot, self._num_servers),)

    # ---- the direct path: sums without a plan

    def direct_route(self, column: int, slot: int) -> SlotRoute:
        """The route of a piece that goes to a column's slot."""
        return SlotRoute(True, slot_key(column, slot, self._num_servers), None)

    def own_direct_keys(self, column: int, slot: int) -> list[int]:
        """The keys of a piece that this worker creates: rank 0 creates all."""
        return [self.direct_route(column, slot).between] if self._inner.rank == 0 else []
