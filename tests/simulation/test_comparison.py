"""What one scheme takes in a setting: how often it exchanges, what it knows, and how much is under way."""

from dataclasses import replace

import pytest

from nalb.measurement.estimators import ESTIMATORS
from nalb.planning.slices import Tensor
from nalb.schemes import SCHEMES
from nalb.simulation.comparison import Setting, times_by_flows, times_by_slices
from nalb.simulation.families import uniform_network
from nalb.simulation.job import by_flows

TENSORS = [Tensor("model", 1_000_000, "float32")]
NODES, CAPACITIES = uniform_network(4, 20, 220, 4)  # where what is learned costs more than chance
KNOWN = Setting(NODES, TENSORS, CAPACITIES, rounds=3)
LEARNED = replace(KNOWN, new_estimator=ESTIMATORS["capacity"])


@pytest.mark.parametrize(
    ("scheme", "known", "learned"), [("stock", 1, 1), ("average", 1, 1), ("exact", 1, 3), ("elastic", 3, 3)]
)
def test_who_learns_has_several_rounds(scheme, known, learned):
    assert len(times_by_slices(SCHEMES[scheme], KNOWN)) == known
    assert len(times_by_slices(SCHEMES[scheme], LEARNED)) == learned


def test_what_is_not_known_yet_is_shared_equally():
    first_s, *_, last_s = times_by_slices(SCHEMES["exact"], LEARNED)
    (equal_s,) = times_by_slices(SCHEMES["average"], LEARNED)
    (known_s,) = times_by_slices(SCHEMES["exact"], KNOWN)
    assert first_s == pytest.approx(equal_s)
    assert known_s < last_s < equal_s


def test_a_small_window_holds_back_also_what_is_learned():
    for setting in (KNOWN, LEARNED):
        small = replace(setting, inflight_bytes=20_000.0)
        assert times_by_slices(SCHEMES["exact"], small)[-1] > 1.1 * times_by_slices(SCHEMES["exact"], setting)[-1]


def test_flows_are_those_of_the_job():
    times_s = by_flows("elastic", KNOWN.nodes, TENSORS, KNOWN.capacities, 3, KNOWN.wire.goodput_part)
    assert times_by_flows(SCHEMES["elastic"], KNOWN) == times_s
    assert times_by_flows(SCHEMES["exact"], LEARNED) == times_by_flows(SCHEMES["exact"], KNOWN)


def test_drawn_rates_follow_from_the_seed_alone():
    nodes, capacities = uniform_network(3, 80, 160, 7)
    assert [node.name for node in nodes] == ["n0", "n1", "n2"]
    assert (capacities.up == capacities.down).all()
    assert ((capacities.up >= 10e6) & (capacities.up <= 20e6)).all()
    assert (uniform_network(3, 80, 160, 7)[1].up == capacities.up).all()
    assert (uniform_network(3, 80, 160, 8)[1].up != capacities.up).all()
