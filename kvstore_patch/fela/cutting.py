"""A net cut into sub-models on the machine that trains it: layers that need about the same batch to be fast go together."""

import mxnet as mx
from mxnet import autograd
from mxnet.ndarray import NDArray

from kvstore_patch.gluon.profiling import Work, best_time_s
from kvstore_patch.store.kvstore import NALB
from nalb.errors import InputError
from nalb.tokens import partition as cuts

BATCH_MOST = 64  # samples that layers are timed with: a CPU's layers are at full speed long before
KEY = "fela.partition"


class Blocks(list[mx.gluon.Block]):
    """Sub-models, in order. threshold: the smallest batch at which the first one computes at full speed."""

    def __init__(self, blocks: list[mx.gluon.nn.HybridSequential], threshold: int):
        super().__init__(blocks)
        self.threshold = threshold


def partition(
    net: mx.gluon.nn.HybridSequential, sample: NDArray, kvstore: NALB | None = None, most: int = BATCH_MOST
) -> Blocks:
    """Times each layer of an initialised net with batches 1, 2, 4, up to `most`, and cuts where thresholds change.

    sample: some input of the net. kvstore: rank 0's cuts count on every worker; without it machines of unequal speed may cut
    differently, which ends the job. The blocks share the net's layers. They are not hybridized.
    """
    layers = _joined([net[i] for i in range(len(net))])
    thresholds, x = [], sample[:1]
    for layer in layers:
        curve = {size: best_time_s(_work(layer, x), size) for size in _sizes(most)}
        thresholds.append(cuts.threshold_batch(curve))
        x = layer(x)
    if kvstore is not None:
        told = mx.nd.array(thresholds if kvstore.rank == 0 else [0] * len(thresholds))
        kvstore.add_up_once(KEY, told)
        thresholds = [int(one) for one in told.asnumpy()]
    parts = cuts.partition(thresholds)
    return Blocks([_chain([layers[i] for i in part]) for part in parts], max(thresholds[i] for i in parts[0]))


def _sizes(most: int) -> list[int]:
    if most < 1:
        raise InputError(f"most {most}: give at least 1 sample")
    return [1 << power for power in range(most.bit_length())]


def _joined(layers: list[mx.gluon.HybridBlock]) -> list[mx.gluon.nn.HybridSequential]:
    """Layers that learn, each with those after it that do not; what comes before the first goes with it."""
    groups: list[list[mx.gluon.HybridBlock]] = []
    learns = False
    for layer in layers:
        has_parameters = bool(layer.collect_params())
        if not groups or (has_parameters and learns):
            groups.append([])
            learns = False
        groups[-1].append(layer)
        learns = learns or has_parameters
    return [_chain(group) for group in groups]


def _chain(layers: list[mx.gluon.HybridBlock]) -> mx.gluon.nn.HybridSequential:
    block = mx.gluon.nn.HybridSequential()
    block.add(*layers)
    return block


def _work(layer: mx.gluon.HybridBlock, x: NDArray) -> Work:
    def work(size: int) -> None:
        batch = mx.nd.repeat(x, repeats=size, axis=0)
        batch.attach_grad()
        with autograd.record():
            output = layer(batch)
        autograd.backward([output])

    return work
