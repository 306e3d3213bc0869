"""What links need for a data plane's own routing."""

import math

import pytest

from kvstore_patch.keys.plane import StockLoads
from nalb.feedback.routing import Routing
from nalb.planning.nodes import Capacities, completion_s
from nalb.planning.slices import Tensor, build_layout
from nalb.services.exchange.other_way import OtherWay
from tests.services.exchange.test_decision import JOB, MEASURED, NOTHING, RATES

FIRST = tuple(Tensor(f"a{k}", 1000 * (k + 1), "float32") for k in range(3))


def test_links_need_what_the_loads_take_by_lower_bounds_of_rates():
    own = OtherWay(StockLoads(JOB), Routing())
    layout = build_layout(FIRST, num_nodes=4, num_servers=4, alpha_bytes=1e4)
    assert own.links_s(MEASURED) == math.inf  # no tensors yet
    own.begin(layout, has_other_tensors=False)
    assert own.links_s(NOTHING) == math.inf  # nothing is measured
    expected_s = completion_s(JOB.nodes, StockLoads(JOB).shares(FIRST), layout.model_bytes, Capacities(*RATES, {}))
    assert own.links_s(MEASURED) == pytest.approx(expected_s)
