"""Sums by sites: within each site first, then between the sites, then back.

A server answers once as many workers have pushed as it counts (roles/planned.py): a site server counts those of its site, a global
server counts one leader of each site. An array's journey:

    members of a site   push --.                                         push zeros --.
                               site server                                             site server --> all members
    its leader          push --' then pull --> push and pull at a global server --> push --'

Each step is an engine operation on the array itself, so the steps of one array follow each other, and steps of different arrays
overlap. The pushed zeros are negative: x + -0.0 has all bits of x for any x, so all workers get the bits of the global server. But
some server processes add float64 in single precision, and others of the same job do not (seen with MXNet 1.9.1). So leaders first
round such sums to single precision, which both kinds keep.
A site of one machine has no site server: its worker leads all slices.

Choice not taken: one fused push and pull within the site. MXNet's server never answers a key if one worker pushes and another
pushes and pulls (KVStoreDistServer::ApplyUpdates, MXNet 1.9.1), so in one round all workers push, or all push and pull.
"""

from collections.abc import Sequence

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.ndarray import NDArray

from kvstore_patch.keys.slots import direct_pairs, plan_slot_key, site_slot_keys, slot_key
from kvstore_patch.store import ndarrays
from kvstore_patch.store.one_level import OneLevel, SlotRoute
from nalb.protocol import wire
from nalb.services.exchange import messages as m


class Journey:
    """One array's way through two levels, by the route of each call; C arguments made once."""

    __slots__ = ("_both", "_clear", "_one", "_rounding")

    def __init__(self, inner: mx.kvstore.KVStore, array: NDArray, zeros: NDArray):
        """zeros: negative zeros, as many as the array has elements."""
        self._one, self._both = ndarrays.OneArray(inner, array), ndarrays.PushPull(inner, [array], [array])
        self._clear = ndarrays.Copy(zeros, array)
        self._rounding: list[ndarrays.Copy] = []
        if array.dtype == np.float64:
            single = nd.zeros(array.shape)
            self._rounding = [ndarrays.Copy(array, single), ndarrays.Copy(single, array)]

    def __call__(self, route: SlotRoute, priority: int) -> None:
        """Queue the array's journey."""
        if route.within is None:
            self._lead(route, priority)
            return
        for_sum, for_result = route.within
        self._one.push(for_sum, priority)
        if route.is_leader:
            self._one.pull(for_sum, priority)
            self._lead(route, priority)
        else:
            self._clear()
        self._both(for_result, priority)

    def _lead(self, route: SlotRoute, priority: int) -> None:
        self._both(route.between, priority)
        for copy in self._rounding:
            copy()


class TwoLevels:
    """The keys by which a worker reaches the servers of both levels, as OneLevel has them without sites."""

    def __init__(self, inner: mx.kvstore.KVStore, levels: wire.Levels, node: int, num_servers: int):
        """node: this worker's node, in planning order. num_servers: the number of servers of both levels together."""
        self._inner, self._levels, self._node, self._num_servers = inner, levels, node, num_servers
        self._own_site = levels.site[node]
        self._own_site_server = levels.site_server[node]
        self._members = [i for i, site in enumerate(levels.site) if site == self._own_site]
        self._site_servers = {rank for rank in levels.site_server if rank >= 0}
        self._zeros: dict[str, NDArray] = {}
        self.columns = len(levels.site)  # places that the direct path's pieces go to in turn: the nodes

    def journeys(self, arrays: Sequence[NDArray]) -> list[Journey]:
        """The journey of each array."""
        return [Journey(self._inner, array, self._zeros_like(array)) for array in arrays]

    def route(self, plan: m.Plan, index: int) -> SlotRoute:
        """The route of slice `index` under a plan."""
        between = plan_slot_key(plan.server_of_slice[index], plan.slot_of_slice[index], self._num_servers)
        if self._own_site_server < 0:
            return SlotRoute(True, between, None)
        leaders = plan.leaders[self._own_site]
        server, slot = leaders.server_of_slice[index], leaders.slot_of_slice[index]
        return SlotRoute(server == self._own_site_server, between, self._plan_keys(server, slot))

    def slot_keys(self, server: int, slot: int) -> tuple[int, ...]:
        """The keys of a plan's slot on a server: two on a site server, else one."""
        if server in self._site_servers:
            return self._plan_keys(server, slot)
        return (plan_slot_key(server, slot, self._num_servers),)

    def _plan_keys(self, server: int, slot: int) -> tuple[int, int]:
        return site_slot_keys(server, direct_pairs(self.columns) + slot, self._num_servers)

    # ---- the direct path: sums without a plan

    def direct_route(self, column: int, slot: int) -> SlotRoute:
        """The route of a piece that the server on node `column` sums for all.

        That node leads the piece in its own site. In other sites the members lead pieces in turn.
        """
        between = slot_key(self._levels.global_server[column], slot, self._num_servers)
        if self._own_site_server < 0:
            return SlotRoute(True, between, None)
        leader = self._direct_leader(column)
        keys = site_slot_keys(self._levels.site_server[leader], slot * self.columns + column, self._num_servers)
        return SlotRoute(leader == self._node, between, keys)

    def own_direct_keys(self, column: int, slot: int) -> list[int]:
        """The keys of a piece that this worker creates: those on its own node's servers."""
        route = self.direct_route(column, slot)
        own = [route.between] if column == self._node else []
        return own + list(route.within or ()) if route.is_leader else own

    def _direct_leader(self, column: int) -> int:
        """The node that leads a column's pieces in this worker's site."""
        return column if column in self._members else self._members[column % len(self._members)]

    def _zeros_like(self, array: NDArray) -> NDArray:
        dtype = ndarrays.dtype_name(array, "of a slice")
        if dtype not in self._zeros or self._zeros[dtype].size < array.size:
            self._zeros[dtype] = nd.array(np.full(array.size, -0.0), dtype=dtype)  # nd.full loses the sign
        return ndarrays.part(self._zeros[dtype], 0, array.size)


Levels = OneLevel | TwoLevels
