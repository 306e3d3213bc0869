"""Failing calls, exactly placed: a caller that carries a scripted libzmq, as libmxnet.so carries its own."""

import pytest

from tests.shim.conftest import Build

pytestmark = pytest.mark.jobs

INTERRUPTED, REFUSED = "Interrupted system call", "Resource temporarily unavailable"
SCRIPTS = {
    "forecast_interrupted": ["wire NALBFC01", "wire meta +", "wire data"],
    "forecast_refused": ["wire meta +", "wire data"],
    "meta_interrupted": ["wire NALBFC01", f"send meta: {INTERRUPTED}", "wire meta +", "wire data"],
    "data_interrupted": ["wire NALBFC01", "wire meta +", f"send data: {INTERRUPTED}", "wire data +", "wire data"],
    # an answer can come as soon as the last frame is out, and the time of the message is asked for then
    "noted_before_it_is_out": [
        *("wire control", "not noted"),
        *("wire NALBFC01", "noted", "wire meta +", "noted", f"send data: {INTERRUPTED}", "wire data", "noted"),
    ]
    * 2,
    # given up after its forecast: the receiver sees a forecast and a message without data, and then a whole pair
    "meta_refused": [
        "wire NALBFC01",
        f"send meta1: {REFUSED}",
        "wire control",
        "wire NALBFC01",
        "wire meta2 +",
        "wire data2",
    ],
    # given up between frames: what comes next continues the same message, so no forecast may go before it
    "given_up_inside": [
        "wire NALBFC01",
        "wire meta1 +",
        f"send data1: {REFUSED}",
        "wire meta2 +",
        "wire data2",
        "wire NALBFC01",
        "wire meta3 +",
        "wire data3",
    ],
    "body_interrupted": [
        f"recv {INTERRUPTED}",
        f"recv {INTERRUPTED}",
        "recv ps9 +",
        "recv meta +",
        f"recv {INTERRUPTED}",
        "recv data",
    ],
    "forecast_body_interrupted": [
        f"recv {INTERRUPTED}",
        f"recv {INTERRUPTED}",
        "recv ps9 +",
        "recv meta +",
        "recv data",
    ],
    "identity_alone": ["recv ps9", "recv ps11 +", "recv meta +", "recv data", "recv ", "recv ps9 +", "recv meta"],
    "closed_with_held_identity": [f"recv {INTERRUPTED}"] * 2 + ["recv ps11 +", "recv meta"],
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_wire_and_caller_see_what_they_should(build: Build, script: str) -> None:
    seen = build.run(script, caller="libcarrier.so")
    assert seen.lines == SCRIPTS[script]
    assert seen.transport.endswith("libcarrier.so")  # the libzmq inside the caller, not any other


def test_failures_are_counted(plain: Build) -> None:
    assert plain.run("forecast_refused", caller="libcarrier.so").counters["forecast_failures"] == 1
    assert plain.run("forecast_interrupted", caller="libcarrier.so").counters["forecast_failures"] == 0
    assert (
        plain.run("identity_alone", caller="libcarrier.so").counters["hostile_frames"] == 3
    )  # two alone, one nameless


def test_a_retried_message_is_one_sample(plain: Build) -> None:
    counters = plain.run("data_interrupted", caller="libcarrier.so").counters
    assert (counters["messages_sent"], counters["bytes_sent"]) == (1, len("meta" + "data" + "data"))
    (sample,) = plain.run("forecast_body_interrupted", caller="libcarrier.so").samples
    assert 0 < sample.start_ns <= sample.end_ns
    assert sample.peer == 9


def test_forecasts_can_be_off_from_the_start(plain: Build) -> None:
    seen = plain.run("meta_interrupted", caller="libcarrier.so", NALB_SHIM_FORECASTS="0")
    assert "wire NALBFC01" not in seen.lines


def test_other_callers_pass_untouched(plain: Build) -> None:
    seen = plain.run("identity_alone", caller="libcarrier.so", NALB_SHIM_CALLER="libmxnet.so")
    assert seen.lines == SCRIPTS["identity_alone"]
    seen = plain.run("data_interrupted", caller="libcarrier.so", NALB_SHIM_CALLER="libmxnet.so")
    assert "wire NALBFC01" not in seen.lines
    assert not any(seen.counters.values())
    assert seen.transport == ""
