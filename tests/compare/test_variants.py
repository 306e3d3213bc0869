import pytest

from nalb.compare.variants import parse_variant
from nalb.errors import InputError
from nalb.events import IterationEvent
from nalb.planning.slices import NUM_PROBE
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from tests.protocol.test_coordinator import Driver


@pytest.mark.parametrize(
    ("word", "block"),
    [
        ("aware", wire.RunBlock("aware", 5, label="aware")),
        ("average-probes", wire.RunBlock("average", 5, probes=False, label="average-probes")),
        ("average+forecasts", wire.RunBlock("average", 5, forecasts=True, label="average+forecasts")),
        ("exact-sites", wire.RunBlock("exact", 5, label="exact-sites")),
        ("oracle-forecasts", wire.RunBlock("oracle", 5, forecasts=False, label="oracle-forecasts")),
        (
            "exact-probes+forecasts@46416",
            wire.RunBlock("exact", 5, probes=False, forecasts=True, slice_bytes=46416.0, label="exact-probes+forecasts@46416"),
        ),
    ],
)  # fmt: skip
def test_a_word_becomes_a_block(word, block):
    assert parse_variant(word).block(5) == block


def test_precisions():
    assert [parse_variant(word).precision for word in ("exact", "exact+int8", "exact-sites+float16@50000")] == [
        "float32",
        "int8",
        "float16",
    ]
    assert parse_variant("exact-probes+forecasts+int4").forecasts is True
    assert [parse_variant(word).is_of_training for word in ("exact+int8", "exact-sites", "exact+int8@50000")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("magic", "unknown scheme 'magic'"),
        ("average+probes", "unknown scheme"),
        ("average@", "unknown scheme"),
        ("average@1.5", "unknown scheme"),
        ("average@100", "at least 256"),
        ("average+int5", "unknown scheme"),
        ("average+int8-forecasts", "unknown scheme"),
        ("aware-forecasts", "what forecasts measure"),
        ("stock-probes", "by itself"),
        ("stock@50000", "by itself"),
        ("p3+forecasts", "has no options"),
        ("gloo@50000", "has no options"),
        ("elastic-sites", "has one level anyway"),
    ],
)
def test_words_without_sense_are_refused(word, text):
    with pytest.raises(InputError, match=text):
        parse_variant(word, peers=["gloo"])


def begin(driver, block):
    """Ask for a block; returns the setup and the plan that follow from it."""
    driver.say("observer", block)
    driver.slots_ready()
    return driver.last("w0", m.Setup), driver.last("w0", m.Plan)


def test_probes_forecasts_slices_and_names_are_switched_block_by_block():
    driver = Driver(NALB_HOLD="1")
    driver.gather()
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register(TENSORS_OF_2_MB))
    setup, plan = begin(driver, parse_variant("average").block(1))
    assert (setup.num_probe, setup.fixed_slice_bytes, plan.measure) == (NUM_PROBE, None, False)
    usual = len(plan.server_of_slice)
    driver.done(0)
    setup, plan = begin(driver, parse_variant("average-probes+forecasts@500000").block(1))
    assert (setup.num_probe, setup.fixed_slice_bytes, plan.measure) == (0, 500_000.0, True)
    assert len(plan.server_of_slice) < usual
    assert driver.last("s0", m.Measure).on
    driver.done(1)
    names = [e.scheme for e in driver.state.events if isinstance(e, IterationEvent)]
    assert names == ["average", "average-probes+forecasts@500000"]
    setup, plan = begin(driver, parse_variant("average").block(1))
    assert (setup.num_probe, setup.fixed_slice_bytes, plan.measure) == (NUM_PROBE, None, False)
    assert len(plan.server_of_slice) == usual
    assert not driver.last("s0", m.Measure).on


TENSORS_OF_2_MB = [m.TensorSpec("w", 500_000, "float32", 0)]
