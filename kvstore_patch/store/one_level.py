"""Sums without sites: every worker pushes to every server, and each array takes one step, there and back."""

from collections.abc import Sequence
from typing import NamedTuple

import mxnet as mx
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays
from nalb.planning.slots import plan_slot_key, slot_key
from nalb.protocol import messages as m


class Route(NamedTuple):
    """The keys of one array's journey, as one worker takes it."""

    is_leader: bool
    between: int  # at the server that sums for all
    within: tuple[int, int] | None  # at the site server, for the site's sum and the result; None: this machine is alone


class Step:
    """One array's way to a server and back, whatever the key; C arguments made once."""

    __slots__ = ("_both",)

    def __init__(self, inner: mx.kvstore.KVStore, array: NDArray):
        self._both = ndarrays.PushPull(inner, [array], [array])

    def __call__(self, route: Route, priority: int) -> None:
        """Queue it."""
        self._both(route.between, priority)


class OneLevel:
    """Where a worker finds the servers."""

    def __init__(self, inner: mx.kvstore.KVStore, num_servers: int):
        self._inner, self._num_servers = inner, num_servers
        self.columns = num_servers  # of the direct path: each server sums every so many-th piece

    def journeys(self, arrays: Sequence[NDArray]) -> list[Step]:
        """One for each array."""
        return [Step(self._inner, array) for array in arrays]

    def route(self, plan: m.Plan, index: int) -> Route:
        """Of a slice."""
        key = plan_slot_key(plan.server_of_slice[index], plan.slot_of_slice[index], self._num_servers)
        return Route(True, key, None)

    def slot_keys(self, server: int, slot: int) -> tuple[int, ...]:
        """The keys of a slot of a plan."""
        return (plan_slot_key(server, slot, self._num_servers),)

    # ---- the direct path: no plan, all alike

    def direct_route(self, column: int, slot: int) -> Route:
        """Of a piece."""
        return Route(True, slot_key(column, slot, self._num_servers), None)

    def own_direct_keys(self, column: int, slot: int) -> list[int]:
        """Those of a piece's keys that this worker makes: rank 0 makes all."""
        return [self.direct_route(column, slot).between] if self._inner.rank == 0 else []
