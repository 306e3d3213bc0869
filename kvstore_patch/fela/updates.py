"""The optimizer's steps, of one sub-model at a time.

All sub-models share one Gluon Trainer, hence one optimizer: its schedules see the same count of updates as in one process.
BatchNorm's running statistics are no gradients: they become the mean over the workers, weighted by their samples.
"""

from collections.abc import Sequence

import mxnet as mx
from mxnet.ndarray import NDArray

from kvstore_patch.fela.gradients import Sums
from kvstore_patch.store import ndarrays


class Updates:
    """places: per sub-model, of its parameters in `trainer`: those that learn first, then those that have no gradient."""

    def __init__(
        self, trainer: mx.gluon.Trainer, learning: Sequence[Sequence[int]], running: Sequence[Sequence[int]], total: int
    ):
        self._trainer, self._learning, self._running, self._total = trainer, learning, running, total

    def apply(self, sub_model: int, sums: Sums) -> None:
        """Take the step by these sums over all workers; queued."""
        trainer, total = self._trainer, self._total
        trainer.optimizer.rescale_grad = trainer._scale / total
        if places := list(self._learning[sub_model]):
            trainer._updaters[0](places, sums.gradients, [self._data(one) for one in places])
        for place, array in zip(self._running[sub_model], sums.averages, strict=True):
            array /= total
            ndarrays.copy(array, self._data(place))

    def _data(self, place: int) -> NDArray:
        return self._trainer._params[place].list_data()[0]
