"""What MXNet's own routing loads nodes with, and what links need for it."""

import math

import numpy as np
import pytest

from nalb.feedback.routing import Routing
from nalb.planning.nodes import Capacities, completion_s
from nalb.planning.slices import Tensor, build_layout
from nalb.planning.slots import STOCK_KEYS
from nalb.planning.stock import route
from nalb.services.exchange.own_routing import OwnLoads, OwnRouting
from tests.services.exchange.test_decision import JOB, MEASURED, NOTHING, RATES

FIRST = tuple(Tensor(f"a{k}", 1000 * (k + 1), "float32") for k in range(3))
SECOND = tuple(Tensor(f"b{k}", 1000, "float32") for k in range(2))


def test_each_set_of_tensors_has_keys_of_its_own_for_good():
    loads = OwnLoads(JOB)
    for tensors, first_key in ((FIRST, 0), (SECOND, 3), (FIRST, 0)):
        sizes_bytes, ranks = route(tensors, 4, range(first_key, first_key + len(tensors)))
        assert loads.shares(tensors).tolist() == np.bincount(ranks, sizes_bytes, 4).tolist()


def test_tensors_beyond_its_keys_are_not_mxnets():
    loads = OwnLoads(JOB)
    many = tuple(Tensor(f"c{k}", 10, "float32") for k in range(STOCK_KEYS))
    assert loads.shares(many).sum() == 40 * STOCK_KEYS
    assert loads.shares(FIRST) is None
    assert loads.shares(many) is not None


def test_links_need_what_the_loads_take_by_lower_bounds_of_rates():
    own = OwnRouting(OwnLoads(JOB), Routing())
    layout = build_layout(FIRST, num_nodes=4, num_servers=4, alpha_bytes=1e4)
    assert own.links_s(MEASURED, layout.model_bytes) == math.inf  # no tensors yet
    own.begin(layout)
    assert own.links_s(NOTHING, layout.model_bytes) == math.inf  # nothing is measured
    expected_s = completion_s(JOB.nodes, OwnLoads(JOB).shares(FIRST), layout.model_bytes, Capacities(*RATES, {}))
    assert own.links_s(MEASURED, layout.model_bytes) == pytest.approx(expected_s)
