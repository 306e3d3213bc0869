"""An independent sum of every slice, for `--verify-sums`: servers' answers are compared with what workers pushed. Pure.

Each worker takes two numbers of each slice, before it is pushed and again when its sum is back: the sum of the elements, and
their sum with signs drawn anew for each iteration. Both are linear, so over all workers the former add up to the latter, up to
rounding; a slice of another place or time, a push too many or too few, and elements out of order do not. The numbers travel over
the control plane and the coordinator compares, so neither ps-lite nor a slot has a part in it.

The servers add n workers' elements in single precision (float64 too, MXNet 1.9.1), in any order: each result is off by at most
n * epsilon times the sum of the magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2). What a fault
changes by less than that, over a whole slice, cannot be seen.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nalb.errors import listed
from nalb.failures import Cause, Failure
from nalb.planning.slices import Layout
from nalb.services.exchange import messages as m
from nalb.services.exchange.progress import JobProgress

Floats = npt.NDArray[np.float64]

KEYS = 5  # keys of a slice that are named: a key may be long


def signs(iteration: int, elements: int) -> Floats:
    """Random signs, +1 or -1, alike on every worker, shape (elements,)."""
    return np.random.default_rng(iteration).integers(0, 2, elements).astype(np.float64) * 2 - 1


def digest(slice_values: npt.NDArray[Any], drawn: Floats) -> m.SliceSum:
    """The numbers of one slice, not finite where any element is not. drawn: signs, at least as many as elements."""
    values = slice_values.astype(np.float64)
    with np.errstate(all="ignore"):
        return m.SliceSum(float(values.sum()), float(values @ drawn[: values.size]), float(np.abs(values).sum()))


def check_sums(layout: Layout, plan: m.Plan, progress: JobProgress, node_of_rank: Mapping[int, str]) -> Failure | None:
    """The failure of find_wrong_sum, or of a worker that said no sums. An iteration that MXNet routes has no slices to check."""
    if plan.routes_itself:
        return None
    told = {worker.node: worker.sums for worker in progress.workers if worker.sums is not None}
    silent = [worker for worker in progress.workers if worker.sums is None]
    if silent:
        detail = "does not verify sums, others do: set NALB_VERIFY_SUMS=1 for every process, or for none"
        return silent[0].process.failure(Cause.UNEQUAL, detail)
    wrong = find_wrong_sum(layout, plan, told, node_of_rank.__getitem__)
    return wrong.failure if wrong else None


class WrongSum(NamedTuple):
    """The first slice whose sum is wrong."""

    failure: Failure
    slice_index: int | None  # None: sums are missing
    workers: list[str]  # those that got the wrong sum, or did not say their sums


def find_wrong_sum(
    layout: Layout, plan: m.Plan, told: Mapping[str, m.Sums], server_name: Callable[[int], str]
) -> WrongSum | None:
    """The first wrong sum, whose failure names iteration, slice, keys, server and slot; None where all are right.

    told: by worker. server_name: of a rank. Where a worker pushed what is not finite the sum must not be finite either.
    """
    short = [name for name, sums in told.items() if not len(sums.sent) == len(sums.received) == len(layout.slices)]
    if short:
        detail = f"did not say the sums of all {len(layout.slices)} slices"
        failure = Failure(cause=Cause.PROTOCOL, detail=detail, role="worker", node=short[0], iteration=plan.iteration)
        return WrongSum(failure, None, short)
    sent = np.array([_rows(sums.sent) for sums in told.values()])  # (workers, slices, 3)
    received = np.array([_rows(sums.received) for sums in told.values()])
    with np.errstate(all="ignore"):
        expected = sent.sum(axis=0)
        magnitude = expected[:, 2]
        limits = [np.finfo(np.float16 if piece.dtype == "float16" else np.float32) for piece in layout.slices]
        epsilon = np.array([float(limit.eps) for limit in limits])
        tiny = np.array(
            [float(limit.tiny) * piece.elements for limit, piece in zip(limits, layout.slices, strict=True)]
        )
        allowed = len(told) * (epsilon * magnitude + tiny)
        error = np.abs(received[:, :, :2] - expected[:, :2]).max(axis=2)
        right = (error <= allowed) & np.isfinite(magnitude)
        is_finite = np.isfinite(received).all(axis=2)
        may_overflow = magnitude > [float(limit.max) for limit in limits]
        right |= ~is_finite & (~np.isfinite(magnitude) | may_overflow)
    wrong = np.argwhere(~right.T)  # by slice, then by worker
    if not len(wrong):
        return None
    index, worker = (int(one) for one in wrong[0])
    wronged = sorted(name for name, is_right in zip(told, right[:, index], strict=True) if not is_right)
    names = [f"worker {name}" for name in wronged]
    keys = sorted({layout.tensors[fragment.tensor].name for fragment in layout.slices[index].fragments})
    place = f"server {server_name(plan.server_of_slice[index])}"
    if plan.slot_of_slice:  # which servers of other planes than ps-lite do not have
        place += f", slot {plan.slot_of_slice[index]}"
    if led := [server_name(one.server_of_slice[index]) for one in plan.leaders if one.server_of_slice]:
        place += f", led by {listed(led)} within their sites"
    detail = (
        f"wrong sum: slice {index} (keys {listed(keys, KEYS)}) of "
        f"{place}: {listed(names)} got elements that add up to {received[worker, index, 0]:.9g}, with signs "
        f"{received[worker, index, 1]:.9g}; what the workers pushed to {expected[index, 0]:.9g} and {expected[index, 1]:.9g}, "
        f"give or take {allowed[index]:.2g}"
    )
    return WrongSum(Failure(cause=Cause.WRONG_SUM, detail=detail, iteration=plan.iteration), index, wronged)


def _rows(sums: Sequence[m.SliceSum]) -> list[tuple[float, float, float]]:
    return [(one.plain, one.signed, one.magnitude) for one in sums]
