"""This worker's sums of gradients over the tokens that it computed, by iteration and sub-model.

Iterations may overlap, so each has sums of its own. Sums that are used up are cleared and used again: in bulk-synchronous training
each sub-model has one set of arrays for ever, and the exchange prepares its call once.
"""

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import mxnet as mx
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays


@dataclass
class Sums:
    """Over this worker's tokens of one iteration and sub-model. gradients: one per parameter that learns.

    averages: one per running statistic (BatchNorm's), as this worker has it times its samples, once `samples` are all there.
    """

    gradients: list[NDArray]
    averages: list[NDArray]
    samples: int = 0

    @property
    def arrays(self) -> list[NDArray]:
        """All that is summed over workers."""
        return self.gradients + self.averages


class Gradients:
    """One thread adds, another takes. learning: per sub-model, parameters with a gradient; running: those that `written` names."""

    def __init__(
        self, learning: Sequence[Sequence[mx.gluon.Parameter]], running: Sequence[Sequence[mx.gluon.Parameter]]
    ):
        self._learning, self._running = learning, running
        self._lock = threading.Lock()
        self._sums: dict[tuple[int, int], Sums] = {}  # by iteration and sub-model
        self._spare: dict[int, list[Sums]] = {}  # by sub-model

    def add(self, iteration: int, sub_model: int, samples: int) -> list[NDArray]:
        """The gradients that a backward pass over `samples` has just left. Returns what is ready once they are added."""
        with self._lock:
            if (iteration, sub_model) not in self._sums:
                self._sums[iteration, sub_model] = self._new(sub_model)
            sums = self._sums[iteration, sub_model]
        for parameter, array in zip(self._learning[sub_model], sums.gradients, strict=True):
            data, grad = parameter.list_data()[0], parameter.list_grad()[0]
            if not data._fresh_grad:  # this pass had no use for the parameter
                grad = mx.nd.zeros_like(grad)
            data._fresh_grad = False
            if sums.samples:
                array += grad
            else:
                ndarrays.copy(grad, array)
        sums.samples += samples
        return sums.gradients

    def take(self, iteration: int, sub_model: int) -> Sums:
        """All that was added; zeros where nothing was. The iteration's tokens of the sub-model are all computed."""
        with self._lock:
            sums = self._sums.pop((iteration, sub_model), None) or self._new(sub_model)
        if not sums.samples:
            for array in sums.arrays:
                ndarrays.clear(array)
        else:
            for parameter, array in zip(self._running[sub_model], sums.averages, strict=True):
                samples = mx.nd.full((1,), sums.samples, dtype=parameter.dtype)
                mx.nd.broadcast_mul(parameter.list_data()[0], samples, out=array)
        return sums

    def give_back(self, sub_model: int, sums: Sums) -> None:
        """They are used up; what reads them is queued."""
        sums.samples = 0
        with self._lock:
            self._spare.setdefault(sub_model, []).append(sums)

    def _new(self, sub_model: int) -> Sums:
        if spare := self._spare.get(sub_model):
            return spare.pop()
        return Sums(_zeros(self._learning[sub_model]), _zeros(self._running[sub_model]))


def _zeros(parameters: Sequence[mx.gluon.Parameter]) -> list[NDArray]:
    return [mx.nd.zeros(one.shape, dtype=one.dtype) for one in parameters]


def written(block: mx.gluon.Block) -> set[str]:
    """The names of parameters that a forward pass in training changes: running statistics, not weights that are frozen.

    The block's graph says it. A block that cannot be drawn as one, since it looks at its input's numbers or shape, is asked
    layer by layer; what such a block declares itself, without a gradient by nature, counts as changed.
    """
    if isinstance(block, mx.gluon.HybridBlock):
        graph: object = None
        with suppress(Exception):  # of whatever kind the block's own code raises
            graph = block(mx.sym.var("data"))
        if isinstance(graph, mx.sym.Symbol):
            nodes = json.loads(graph.tojson())["nodes"]
            still = [node for node in nodes if node.get("attrs", {}).get("use_global_stats") == "True"]
            return {*graph.list_auxiliary_states()} - {
                nodes[one[0]]["name"] for node in still for one in node["inputs"]
            }
    declared = block._reg_params.values()
    own = {
        one.name
        for one in declared
        if one.grad_req == "null" and not one._differentiable and not isinstance(one, mx.gluon.Constant)
    }
    return own.union(*map(written, block._children.values()))
