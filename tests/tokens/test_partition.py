"""The cuts of the paper, from its authors' timings."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.tokens.partition import partition, stages, threshold_batch

# seconds of two equal layers of VGG19 on a K40c at batches 1, 2, 4, ..: the authors' timings
K40C = {
    "64@224": (0.0253, 0.0380, 0.0641, 0.166, 0.157, 0.313),
    "128@112": (0.0151, 0.0253, 0.0442, 0.0626, 0.0935, 0.185, 0.364),
    "256@56": (0.0123, 0.0195, 0.0337, 0.0427, 0.0580, 0.113, 0.219, 0.431),
    "512@28": (0.0122, 0.0194, 0.0328, 0.0356, 0.0445, 0.0806, 0.154, 0.299, 0.588),
    "512@14": (0.0071, 0.0090, 0.0122, 0.0164, 0.0192, 0.0271, 0.0487, 0.105, 0.199, 0.382),
}
LAYERS = ["64@224"] * 2 + ["128@112"] * 2 + ["256@56"] * 4 + ["512@28"] * 4 + ["512@14"] * 4


def cuts(full):
    """Of VGG19; its dense layers need a batch of 2048."""
    curves = [{1 << i: seconds for i, seconds in enumerate(K40C[layer])} for layer in LAYERS]
    return partition([*(threshold_batch(one, full) for one in curves), 2048, 2048, 2048])


def test_vgg19_is_cut_as_in_the_paper():
    assert cuts(0.92) == [range(8), range(8, 16), range(16, 19)]


@pytest.mark.parametrize("full", [0.90, 0.95])
def test_other_fractions_give_other_cuts(full):
    assert cuts(full) != cuts(0.92)


@given(st.lists(st.integers(1, 300), max_size=30))
def test_every_layer_is_in_one_sub_model(thresholds):
    found = partition(thresholds)
    assert [layer for one in found for layer in one] == list(range(len(thresholds)))
    assert all(len({thresholds[layer] // 16 for layer in one}) == 1 for one in found)
    assert all(thresholds[one.stop - 1] // 16 != thresholds[one.stop] // 16 for one in found[:-1])


def test_a_linear_layer_is_at_full_speed_at_once():
    assert threshold_batch({1: 1.0, 2: 2.0, 4: 4.0}) == 1


@pytest.mark.parametrize("curve", [{}, {0: 1.0}, {1: 0.0}, {1: float("nan")}])
def test_timings_that_tell_nothing_are_refused(curve):
    with pytest.raises(InputError, match="timings"):
        threshold_batch(curve)


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=9), st.data())
def test_the_slowest_stage_is_as_fast_as_can_be(seconds, data):
    count = data.draw(st.integers(1, len(seconds)))
    found = stages(seconds, count)
    assert [layer for one in found for layer in one] == list(range(len(seconds)))
    assert len(found) == count
    slowest = max(sum(seconds[layer] for layer in one) for one in found)
    for cuts in itertools.combinations(range(1, len(seconds)), count - 1):
        edges = (0, *cuts, len(seconds))
        assert slowest <= (1 + 1e-9) * max(sum(seconds[low:high]) for low, high in itertools.pairwise(edges))


@pytest.mark.parametrize("count", [0, 3])
def test_more_stages_than_layers_are_refused(count):
    with pytest.raises(InputError, match="stages of 2 layers"):
        stages([1.0, 1.0], count)
