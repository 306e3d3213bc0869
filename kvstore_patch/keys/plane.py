"""ps-lite as the coordinator's data plane: its servers keep slots, and without a plan MXNet routes each key by its hash. Pure."""

import numpy as np

from kvstore_patch.keys.slot_numbers import PlanSlots
from nalb.planning.nodes import Floats
from nalb.planning.slices import Tensor
from nalb.planning.stock import STOCK_KEYS, OwnKeys, route
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.planes import Plane

INT_MOST = (1 << 31) - 1


class StockLoads:
    """The bytes that each server sums by MXNet's own routing, which depends on the keys that each set of tensors gets."""

    def __init__(self, nodes: JobNodes):
        self._node_of_rank = {rank: node for node, rank in nodes.rank_of_node.items()}
        self._num_nodes = len(nodes.nodes)
        self._keys = OwnKeys()  # counted like kvstore_patch/store/whole_tensors.py

    def shares(self, tensors: tuple[Tensor, ...]) -> Floats | None:
        """Bytes per node, shape (N,), which get keys on their first use; None where MXNet cannot route them.

        It has no keys left then, or a tensor is too large: MXNet counts the bytes of a key in an int.
        """
        keys = self._keys.of(tensors)  # also where MXNet cannot route them: workers count so
        if keys[-1] >= STOCK_KEYS or max(tensor.size_bytes for tensor in tensors) > INT_MOST:
            return None
        sizes_bytes, ranks = route(tensors, len(self._node_of_rank), keys)
        on_node = np.array([self._node_of_rank[rank] for rank in ranks.tolist()])
        return np.bincount(on_node, sizes_bytes, self._num_nodes).astype(np.float64)


PS_LITE = Plane(PlanSlots, StockLoads)
