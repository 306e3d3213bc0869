"""What MXNet's own routing loads nodes with."""

import numpy as np

from kvstore_patch.keys.plane import StockLoads
from kvstore_patch.keys.slots import STOCK_KEYS
from nalb.planning.slices import Tensor
from nalb.planning.stock import route
from tests.services.exchange.test_decision import JOB

FIRST = tuple(Tensor(f"a{k}", 1000 * (k + 1), "float32") for k in range(3))
SECOND = tuple(Tensor(f"b{k}", 1000, "float32") for k in range(2))


def test_each_set_of_tensors_has_keys_of_its_own_for_good():
    loads = StockLoads(JOB)
    for tensors, first_key in ((FIRST, 0), (SECOND, 3), (FIRST, 0)):
        sizes_bytes, ranks = route(tensors, 4, range(first_key, first_key + len(tensors)))
        assert loads.shares(tensors).tolist() == np.bincount(ranks, sizes_bytes, 4).tolist()


def test_a_tensor_whose_bytes_do_not_fit_into_an_int_is_not_mxnets():
    loads = StockLoads(JOB)
    assert loads.shares((*FIRST, Tensor("softmax", 1 << 29, "float32"))) is None
    assert loads.shares((*FIRST, Tensor("softmax", (1 << 29) - 1, "float32"))) is not None


def test_tensors_beyond_its_keys_are_not_mxnets():
    loads = StockLoads(JOB)
    many = tuple(Tensor(f"c{k}", 10, "float32") for k in range(STOCK_KEYS))
    assert loads.shares(many).sum() == 40 * STOCK_KEYS
    assert loads.shares(FIRST) is None
    assert loads.shares(many) is not None
