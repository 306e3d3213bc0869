"""The models that Fela's simulations train."""

from itertools import combinations

import pytest

from nalb.errors import InputError
from nalb.simulation.profiles import DENSE_THRESHOLD, PROFILES, googlenet, vgg19
from nalb.tokens.partition import partition, threshold_batch


def test_vgg19_has_the_bytes_that_it_has():
    """143,667,240 weights and biases of 4 bytes."""
    model = vgg19()
    assert [round(one.parameters_bytes / 1e6, 1) for one in model.sub_models] == [9.3, 70.8, 494.6]
    assert sum(layer.parameters_bytes for layer in model.layers) == 4 * 143_667_240
    assert model.sub_models[0].output_bytes == 4 * 256 * 28 * 28
    assert model.sub_models[1].output_bytes == 4 * 512 * 7 * 7


def test_googlenet_has_twelve_units_and_the_bytes_that_it_has():
    model = googlenet()
    assert [len(one.layers) for one in model.sub_models] == [4, 5, 3]
    assert sum(one.parameters_bytes for one in model.sub_models) == pytest.approx(24.6e6, rel=0.01)
    assert model.sub_models[0].output_bytes == 4 * 480 * 16 * 16


def test_vgg19_is_cut_where_its_curves_say():
    model = vgg19()
    batches = [threshold_batch(layer.curve) for layer in model.layers[:16]] + [DENSE_THRESHOLD] * 3
    assert tuple(one.start for one in partition(batches)) == model.cuts
    assert batches[0] == model.threshold


def test_times_go_through_the_measured_points_and_on_in_proportion():
    pair = vgg19().cut((0, 2))[0]  # the two layers of the first curve
    assert pair.seconds(16) == pytest.approx(0.157)
    assert pair.seconds(24) == pytest.approx((0.157 + 0.313) / 2)
    assert pair.seconds(64) == pytest.approx(2 * 0.313)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("samples", [1, 16, 100])
def test_time_is_that_of_all_layers(name, samples):
    model = PROFILES[name]()
    assert sum(one.seconds(samples) for one in model.sub_models) == pytest.approx(model.whole[0].seconds(samples))
    assert model.whole[0].seconds(samples) > 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_slowest_stage_is_as_fast_as_can_be(count):
    model = vgg19()

    def slowest(starts):
        return max(stage.seconds(16) for stage in model.cut(starts))

    best = min(slowest((0, *starts)) for starts in combinations(range(1, len(model.layers)), count - 1))
    stages = model.stages(count, 16)
    assert [layer for one in stages for layer in one.layers] == list(model.layers)
    assert max(stage.seconds(16) for stage in stages) == pytest.approx(best)


def test_there_are_as_many_stages_as_asked_for():
    assert [len(googlenet().stages(count, 16)) for count in (1, 5, 8, 12)] == [1, 5, 8, 12]
    with pytest.raises(InputError, match="13 stages"):
        googlenet().stages(13, 16)
