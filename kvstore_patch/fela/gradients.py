"""This worker's sums of gradients over the tokens that it computed, by iteration and sub-model.

Iterations may overlap, so each has sums of its own. Arrays are used again after their step. So in bulk-synchronous training each
sub-model keeps one set of arrays, and the exchange prepares its call once.
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
class GradientSums:
    """Sums over this worker's tokens of one iteration and sub-model. gradients: one array per parameter that learns.

    averages: one array per running statistic (BatchNorm's): this worker's value times its samples, set when the sums are taken.
    samples: how many samples the tokens had.
    """

    gradients: list[NDArray]
    averages: list[NDArray]
    samples: int = 0

    @property
    def arrays(self) -> list[NDArray]:
        """All arrays that are summed over workers."""
        return self.gradients + self.averages


class Gradients:
    """Holds the sums: one thread adds to them, another takes them.

    learning: per sub-model, the parameters with a gradient. running: per sub-model, the running statistics, found by `written`.
    """

    def __init__(
        self, learning: Sequence[Sequence[mx.gluon.Parameter]], running: Sequence[Sequence[mx.gluon.Parameter]]
    ):
        self._learning, self._running = learning, running
        self._lock = threading.Lock()
        # Held while operations on several of these arrays or weights are queued. MXNet's engine takes an operation's arrays one by
        # one. So two threads could queue A before B for one array and B before A for another: then neither would ever run.
        # Blocks and the loss compute under it, so a block that reads a value holds up this worker's sums meanwhile.
        self.queueing = threading.Lock()
        self._sums: dict[tuple[int, int], GradientSums] = {}  # by iteration and sub-model
        self._spare: dict[int, list[GradientSums]] = {}  # by sub-model

    def add(self, iteration: int, sub_model: int, samples: int) -> list[NDArray]:
        """Add the gradients that a backward pass over `samples` samples just left. Returns arrays that are ready with the sums."""
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

    def take_sums(self, iteration: int, sub_model: int) -> GradientSums:
        """The sums of all that was added, zeros where nothing was. Call it when all tokens of iteration and sub-model are done."""
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

    def give_back(self, sub_model: int, sums: GradientSums) -> None:
        """Return sums for later use: the operations that read them are queued."""
        sums.samples = 0
        with self._lock:
            self._spare.setdefault(sub_model, []).append(sums)

    def _new(self, sub_model: int) -> GradientSums:
        if spare := self._spare.get(sub_model):
            return spare.pop()
        return GradientSums(_zeros(self._learning[sub_model]), _zeros(self._running[sub_model]))


def _zeros(parameters: Sequence[mx.gluon.Parameter]) -> list[NDArray]:
    return [mx.nd.zeros(one.shape, dtype=one.dtype) for one in parameters]


def written(block: mx.gluon.Block) -> set[str]:
    """The names of the parameters that a forward pass in training changes: running statistics, but not frozen weights.

    They are read from the block's symbolic graph. A block without one, because its code depends on its input's values or shape, is
    searched child by child; of its own parameters those that are declared as never differentiable count as changed.
    """
    if isinstance(block, mx.gluon.HybridBlock):
        graph: object = None
        with suppress(Exception):  # the block's own code may raise any kind
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
