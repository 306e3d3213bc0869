"""Cuts a net on the machine that trains it: for Fela by the batch sizes that layers need, for model parallelism by time."""

import logging
from collections.abc import Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray

from kvstore_patch.gluon.profiling import ComputeBatch, best_time_s
from kvstore_patch.store.kvstore import required
from nalb.errors import InputError
from nalb.tokens import partition as cuts

log = logging.getLogger(__name__)

BATCH_MOST = 64  # samples; the largest batch that layers are timed with: on a CPU they reach full speed well below it
STAGE_BATCH = 16  # samples; the batch that layers are timed with for stages, about one micro-batch
KEY = "fela.partition"


class Blocks(list[mx.gluon.Block]):
    """Sub-models, in order. threshold: the smallest batch at which the first one computes at full speed."""

    def __init__(self, blocks: list[mx.gluon.nn.HybridSequential], threshold: int):
        super().__init__(blocks)
        self.threshold = threshold


def partition(
    net: mx.gluon.HybridBlock, sample: NDArray, kvstore: KVStoreBase | None = None, most: int = BATCH_MOST
) -> Blocks:
    """Times each layer of an initialised net with batches of 1, 2, 4, up to `most` samples, and cuts where thresholds change.

    net: a HybridSequential, or a net of `features` and `output` as in Gluon's model zoo; any other net stays one block, with a
    warning. sample: some input of the net. kvstore: gives every worker rank 0's cuts; without it machines of unequal speed may cut
    differently, which ends the job. The blocks share the net's layers and are not hybridized. Raises InputError, StoreError.
    """
    layers, sizes = _joined(_layers(net, sample[:1])), _sizes(most)
    curves = _timed(layers, sample[:1], sizes)
    thresholds = [int(one) for one in _rank_0([float(cuts.threshold_batch(curve)) for curve in curves], kvstore)]
    parts = cuts.partition(thresholds)
    return Blocks([_chain([layers[i] for i in part]) for part in parts], max(thresholds[i] for i in parts[0]))


def stages(
    net: mx.gluon.HybridBlock,
    sample: NDArray,
    count: int,
    kvstore: KVStoreBase | None = None,
    batch: int = STAGE_BATCH,
) -> list[mx.gluon.nn.HybridSequential]:
    """Cuts an initialised net for `--parallel mp` into `count` stages, so that the slowest takes least time for `batch` samples.

    Each stage has at least one layer that learns, so a net with fewer such layers has fewer stages. net, sample, kvstore: as of
    `partition`. The stages share the net's layers and are not hybridized. Raises InputError, StoreError.
    """
    layers = _joined(_layers(net, sample[:1]))
    seconds = _rank_0([curve[batch] for curve in _timed(layers, sample[:1], [batch])], kvstore)
    return [_chain([layers[i] for i in part]) for part in cuts.stages(seconds, min(count, len(layers)))]


def check_arrays() -> None:
    """Raise InputError where blocks compute with mx.np's arrays: sums and tokens are of mx.nd's."""
    if mx.util.is_np_array():
        raise InputError("npx.set_np() is on, and fela computes with arrays of mx.nd only: leave it out")


def _timed(layers: list[mx.gluon.nn.HybridSequential], x: NDArray, sizes: list[int]) -> list[cuts.Curve]:
    """Each layer's seconds, forward and backward, with batches of these sizes. x: one sample, the first layer's input."""
    check_arrays()
    curves: list[cuts.Curve] = []
    for layer in layers:
        output = layer(x)  # its parameters have shapes now
        running = [one for one in layer.collect_params().values() if one.grad_req == "null"]
        before = [one.data().copy() for one in running]
        curves.append({size: best_time_s(_work(layer, x), size) for size in sizes})
        for one, value in zip(running, before, strict=True):  # training changes them, such as running means
            one.set_data(value)
        x = output
    return curves


def _rank_0(measured: list[float], kvstore: KVStoreBase | None) -> list[float]:
    """Rank 0's measurements, on every worker; without a store, this worker's own."""
    if kvstore is None:
        return measured
    store = required(kvstore, "cuts are agreed on")
    told = mx.nd.array(measured if store.rank == 0 else [0] * len(measured), dtype="float64")
    store.add_up_once(KEY, told)
    return [float(one) for one in told.asnumpy()]


def _sizes(most: int) -> list[int]:
    if most < 1:
        raise InputError(f"most {most}: give at least 1 sample")
    return [1 << power for power in range(most.bit_length())]


def _layers(net: mx.gluon.HybridBlock, x: NDArray) -> list[mx.gluon.Block]:
    """The layers that the net computes one after the other; the net itself where it cannot be taken apart. x: one sample."""
    if isinstance(net, mx.gluon.nn.HybridSequential):
        return _flat(net)
    if list(net._children) == ["features", "output"]:
        layers = [layer for part in net._children.values() for layer in _flat(part)]
        y = x
        for layer in layers:
            y = layer(y)
        if np.array_equal(y.asnumpy(), net(x).asnumpy()):
            return layers
    log.warning(
        "%s is no HybridSequential, and not features and output one after the other: it stays one block. Give its parts in a "
        "HybridSequential to have it cut",
        type(net).__name__,
    )
    return [net]


def _flat(net: mx.gluon.Block) -> list[mx.gluon.Block]:
    """The layers of a net and of all HybridSequentials within it, in order."""
    if not isinstance(net, mx.gluon.nn.HybridSequential):
        return [net]
    return [layer for i in range(len(net)) for layer in _flat(net[i])]


def _joined(layers: list[mx.gluon.Block]) -> list[mx.gluon.nn.HybridSequential]:
    """Groups of layers: each has one that learns and the following ones that do not. Layers before the first one join its group."""
    groups: list[list[mx.gluon.Block]] = []
    learns = False
    for layer in layers:
        has_parameters = bool(list(layer.collect_params()))
        if not groups or (has_parameters and learns):
            groups.append([])
            learns = False
        groups[-1].append(layer)
        learns = learns or has_parameters
    return [_chain(group) for group in groups]


def _chain(layers: Sequence[mx.gluon.Block]) -> mx.gluon.nn.HybridSequential:
    block = mx.gluon.nn.HybridSequential()
    block.add(*layers)
    return block


def _work(layer: mx.gluon.HybridBlock, x: NDArray) -> ComputeBatch:
    def work(size: int) -> None:
        batch = mx.nd.repeat(x, repeats=size, axis=0)
        batch.attach_grad()
        with autograd.record():
            output = layer(batch)
        autograd.backward([output])

    return work
