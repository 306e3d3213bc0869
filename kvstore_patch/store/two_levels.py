"""Sums by sites: within each site first, then between the sites, then back.

A server answers once as many workers have pushed as it counts (roles/planned.py): a site server those of its site, a global server
one leader of each site. An array's journey:

    members of a site   push --.                                         push zeros --.
                               site server                                             site server --> all members
    its leader          push --' then pull --> push and pull at a global server --> push --'

Each step is an engine operation on the array itself, so the steps of one array follow each other and those of others overlap.
The zeros are negative ones: x + -0.0 has all bits of x, whatever x is, so all workers get the bits that the global server has. But
some server processes add float64 in single precision and others of the same job do not (seen with MXNet 1.9.1), so leaders first
round such sums to single precision, which both kinds keep.
A site of one machine has no site server: its worker leads everything.

Choice not taken: one fused push and pull within the site. MXNet's server answers a key's pushes that come with others' pulls never
(KVStoreDistServer::ApplyUpdates, MXNet 1.9.1), so in one round all push, or all push and pull.
"""

from collections.abc import Sequence

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays
from kvstore_patch.store.one_level import OneLevel, Route
from nalb.planning.slots import direct_pairs, plan_slot_key, site_slot_keys, slot_key
from nalb.protocol import messages as m


class Journey:
    """One array's way through two levels, whatever the keys; C arguments made once."""

    __slots__ = ("_both", "_clear", "_one", "_rounding")

    def __init__(self, inner: mx.kvstore.KVStore, array: NDArray, zeros: NDArray):
        """zeros: negative ones, as many as the array has elements."""
        self._one, self._both = ndarrays.OneArray(inner, array), ndarrays.PushPull(inner, [array], [array])
        self._clear = ndarrays.Copy(zeros, array)
        self._rounding: list[ndarrays.Copy] = []
        if array.dtype == np.float64:
            single = nd.zeros(array.shape)
            self._rounding = [ndarrays.Copy(array, single), ndarrays.Copy(single, array)]

    def __call__(self, route: Route, priority: int) -> None:
        """Queue it."""
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

    def _lead(self, route: Route, priority: int) -> None:
        self._both(route.between, priority)
        for copy in self._rounding:
            copy()


class TwoLevels:
    """Where a worker finds the servers of both levels, as OneLevel does without sites."""

    def __init__(self, inner: mx.kvstore.KVStore, levels: m.Levels, node: int, num_servers: int):
        """node: this worker's, in planning order. num_servers: of both levels."""
        self._inner, self._levels, self._node, self._num_servers = inner, levels, node, num_servers
        self._own_site = levels.site[node]
        self._own_site_server = levels.site_server[node]
        self._members = [i for i, site in enumerate(levels.site) if site == self._own_site]
        self._site_servers = {rank for rank in levels.site_server if rank >= 0}
        self._zeros: dict[str, NDArray] = {}
        self.columns = len(levels.site)  # of the direct path: each node owns every so many-th piece

    def journeys(self, arrays: Sequence[NDArray]) -> list[Journey]:
        """One for each array."""
        return [Journey(self._inner, array, self._zeros_like(array)) for array in arrays]

    def route(self, plan: m.Plan, index: int) -> Route:
        """Of a slice."""
        between = plan_slot_key(plan.server_of_slice[index], plan.slot_of_slice[index], self._num_servers)
        if self._own_site_server < 0:
            return Route(True, between, None)
        leaders = plan.leaders[self._own_site]
        server, slot = leaders.server_of_slice[index], leaders.slot_of_slice[index]
        return Route(server == self._own_site_server, between, self._plan_keys(server, slot))

    def slot_keys(self, server: int, slot: int) -> tuple[int, ...]:
        """The keys of a slot of a plan; a server of a site has two."""
        if server in self._site_servers:
            return self._plan_keys(server, slot)
        return (plan_slot_key(server, slot, self._num_servers),)

    def _plan_keys(self, server: int, slot: int) -> tuple[int, int]:
        return site_slot_keys(server, direct_pairs(self.columns) + slot, self._num_servers)

    # ---- the direct path: no plan, all alike

    def direct_route(self, column: int, slot: int) -> Route:
        """Of a piece whose sum is the server's on node `column`; its members lead in turns where that is at another site."""
        between = slot_key(self._levels.global_server[column], slot, self._num_servers)
        if self._own_site_server < 0:
            return Route(True, between, None)
        leader = self._direct_leader(column)
        keys = site_slot_keys(self._levels.site_server[leader], slot * self.columns + column, self._num_servers)
        return Route(leader == self._node, between, keys)

    def own_direct_keys(self, column: int, slot: int) -> list[int]:
        """Those of a piece's keys that this worker makes: what is on its node's servers."""
        route = self.direct_route(column, slot)
        own = [route.between] if column == self._node else []
        return own + list(route.within or ()) if route.is_leader else own

    def _direct_leader(self, column: int) -> int:
        """Of this worker's site."""
        return column if column in self._members else self._members[column % len(self._members)]

    def _zeros_like(self, array: NDArray) -> NDArray:
        dtype = ndarrays.dtype_name(array, "of a slice")
        if dtype not in self._zeros or self._zeros[dtype].size < array.size:
            self._zeros[dtype] = nd.array(np.full(array.size, -0.0), dtype=dtype)  # nd.full loses the sign
        return ndarrays.part(self._zeros[dtype], 0, array.size)


Levels = OneLevel | TwoLevels
