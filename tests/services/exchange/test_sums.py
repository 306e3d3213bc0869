"""Independent sums of slices: right ones pass in every dtype, each kind of wrong one is seen and named."""

import numpy as np
import pytest
from msgspec import structs

from nalb.failures import Cause
from nalb.planning.slices import Tensor, build_layout
from nalb.services.exchange import messages as m
from nalb.services.exchange.sums import digest, find_wrong_sum, signs
from tests.failures import when, who

BIG = 12  # a slice of the common size; the first ones are probes and small
WORKERS = ("n0", "n1", "n2")


def iteration(dtype, spread=1.0, number=3):
    """(layout, plan, per worker its slices, the servers' sums as they add: in single precision, one after another)."""
    tensors = [Tensor("weight", 50_000, dtype), Tensor("bias", 1_000, dtype)]
    layout = build_layout(tensors, num_nodes=3, num_servers=3, alpha_bytes=1e3)
    generator = np.random.default_rng(7)
    pushed = {
        name: [(spread * generator.standard_normal(piece.elements)).astype(dtype) for piece in layout.slices]
        for name in WORKERS
    }
    adds_in = np.float32 if dtype == "float64" else dtype
    with np.errstate(over="ignore"):
        answered = [
            sum((one.astype(adds_in) for one in arrays[1:]), arrays[0].astype(adds_in)).astype(dtype)
            for arrays in zip(*pushed.values(), strict=True)
        ]
    count = len(layout.slices)
    plan = m.Plan(number, number, 0, "aware", True, [], [k % 3 for k in range(count)], list(range(count)))
    return layout, plan, pushed, answered


def judge(layout, plan, pushed, got):
    """As a job does: `got` by worker, else the same for all."""
    drawn = signs(plan.iteration, max(piece.elements for piece in layout.slices))
    told = {}
    for name in WORKERS:
        back = got[name] if isinstance(got, dict) else got
        both = ([digest(one, drawn) for one in arrays] for arrays in (pushed[name], back))
        told[name] = m.Sums(plan.iteration, *both)
    return find_wrong_sum(layout, plan, told, "abc".__getitem__)


@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_right_sums_pass(dtype, spread):
    layout, plan, pushed, answered = iteration(dtype, spread)
    assert judge(layout, plan, pushed, answered) is None


def one_element(answered, _):
    answered[BIG][100] += 1


def a_push_too_few(answered, pushed):
    answered[BIG] -= pushed["n1"][BIG]


def a_push_twice(answered, pushed):
    answered[BIG] += pushed["n1"][BIG]


def elements_out_of_order(answered, _):
    answered[BIG][:] = answered[BIG][::-1]


def the_iteration_before(answered, _):
    answered[BIG] = iteration("float32", 1.1)[3][BIG]


def not_a_number(answered, _):
    answered[BIG][5] = np.nan


@pytest.mark.parametrize(
    "fault", [one_element, a_push_too_few, a_push_twice, elements_out_of_order, the_iteration_before, not_a_number]
)
def test_a_wrong_sum_is_named(fault):
    layout, plan, pushed, answered = iteration("float32")
    fault(answered, pushed)
    found = judge(layout, plan, pushed, answered)
    assert (found.failure.cause, found.failure.iteration) == (Cause.WRONG_SUM, 3)
    assert (found.slice_index, found.workers) == (12, ["n0", "n1", "n2"])
    assert "\n" not in found.failure.detail


def test_a_wrong_sum_of_servers_without_slots_is_named_by_its_server():
    layout, plan, pushed, answered = iteration("float32")
    one_element(answered, pushed)
    found = judge(layout, structs.replace(plan, slot_of_slice=[]), pushed, answered)
    assert (found.failure.cause, found.slice_index) == (Cause.WRONG_SUM, 12)
    assert "slot" not in found.failure.detail


def test_two_slices_in_each_others_place_are_seen():
    layout, plan, pushed, answered = iteration("float32")
    alike = [k for k, piece in enumerate(layout.slices) if piece.elements == layout.slices[BIG].elements and k > BIG]
    answered[BIG], answered[alike[0]] = answered[alike[0]], answered[BIG]
    assert judge(layout, plan, pushed, answered).slice_index == 12


def test_what_one_worker_alone_received_wrong_is_told_so():
    layout, plan, pushed, answered = iteration("float32")
    damaged = [one.copy() for one in answered]
    damaged[2][0] = 1e6
    found = judge(layout, plan, pushed, {"n0": answered, "n1": damaged, "n2": answered})
    assert (found.slice_index, found.workers) == (2, ["n1"])


def test_gradients_that_are_not_finite_must_come_back_so():
    layout, plan, pushed, answered = iteration("float32")
    pushed["n0"][1][7] = np.inf
    assert judge(layout, plan, pushed, answered).slice_index == 1
    answered[1][7] = np.inf
    assert judge(layout, plan, pushed, answered) is None


def test_an_overflow_in_half_precision_is_no_fault():
    layout, plan, pushed, answered = iteration("float16", 1e4)
    assert not all(np.isfinite(one).all() for one in answered)
    assert judge(layout, plan, pushed, answered) is None


def test_too_few_sums_are_named():
    layout, plan, _, _ = iteration("float32")
    told = {name: m.Sums(3, [], []) for name in WORKERS}
    found = find_wrong_sum(layout, plan, told, "abc".__getitem__)
    assert (found.failure.cause, found.slice_index) == (Cause.PROTOCOL, None)
    assert (who(found.failure), when(found.failure)) == (("worker", "n0"), (None, plan.iteration))
