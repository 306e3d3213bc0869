"""Takes the optimizer's steps, one sub-model at a time, and copies a sub-model's whole state from one worker to another.

All sub-models share one Gluon Trainer, hence one optimizer: its schedules see the same count of updates as in one process.
BatchNorm's running statistics have no gradients: each becomes the mean over the workers, weighted by their samples.
"""

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.ndarray import NDArray

from kvstore_patch.fela.gradients import GradientSums
from kvstore_patch.gluon.training_state import CHANGING, UNSUPPORTED, leaves
from kvstore_patch.store import ndarrays
from nalb.errors import InputError


class Updates:
    """Takes the steps of one worker. learning, running: per sub-model, parameters of the trainer, as Gradients has them.

    Raises InputError for an optimizer that keeps numbers beside its states: they would differ between workers that hold different
    sub-models.
    """

    def __init__(
        self,
        trainer: mx.gluon.Trainer,
        learning: Sequence[Sequence[mx.gluon.Parameter]],
        running: Sequence[Sequence[mx.gluon.Parameter]],
        total: int,
    ):
        kind = type(trainer.optimizer)
        if kind.__name__ in UNSUPPORTED or any(hasattr(trainer.optimizer, name) for name in CHANGING):
            raise InputError(f"optimizer {kind.__name__} keeps what is of no single sub-model: choose another")
        place = {one.name: i for i, one in enumerate(trainer._params)}
        self._trainer, self._total = trainer, total
        self._learning, self._running = (
            [[place[one.name] for one in group] for group in kind] for kind in (learning, running)
        )

    def apply(self, sub_model: int, sums: GradientSums) -> None:
        """Queue the step of one sub-model. sums: over all workers, as Gradients takes them."""
        trainer, total = self._trainer, self._total
        trainer.optimizer.rescale_grad = trainer._scale / total
        if places := self._learning[sub_model]:
            trainer._updaters[0](places, sums.gradients, [self._data(one) for one in places])
        for place, array in zip(self._running[sub_model], sums.averages, strict=True):
            array /= total
            ndarrays.copy(array, self._data(place))

    def collect(self, sub_model: int) -> list[npt.NDArray[Any]]:
        """Copies of a sub-model's parameters, optimizer states and counts of updates; waits for its queued steps."""
        arrays = [array.asnumpy() for array in self._arrays(sub_model)]
        counts = self._counts()
        numbers = [self._trainer.optimizer.num_update, *(counts.get(one, -1) for one in self._learning[sub_model])]
        return [*arrays, np.array(numbers, np.int64)]

    def count(self, sub_model: int) -> int:
        """The number of arrays that `collect` gives."""
        return len(self._arrays(sub_model)) + 1

    def put(self, sub_model: int, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Put in place the arrays that another worker's `collect` gave."""
        for own, array in zip(self._arrays(sub_model), arrays[:-1], strict=True):
            ndarrays.write(own, array)  # an evaluation here may have changed its layout
        numbers = arrays[-1].tolist()
        self._trainer.optimizer.num_update = max(self._trainer.optimizer.num_update, numbers[0])
        updates = zip(self._learning[sub_model], numbers[1:], strict=True)
        self._counts().update({place: count for place, count in updates if count >= 0})

    def _arrays(self, sub_model: int) -> list[NDArray]:
        updater = self._trainer._updaters[0]
        found = [self._data(place) for place in (*self._learning[sub_model], *self._running[sub_model])]
        for place in self._learning[sub_model]:
            if place not in updater.states:  # the parameter was never updated
                updater.states[place] = updater.optimizer.create_state_multi_precision(place, self._data(place))
                updater.states_synced[place] = True
            found += leaves(updater.states[place])
        return found

    def _counts(self) -> dict[int, int]:
        device = self._trainer._contexts[0].device_id
        return self._trainer.optimizer._all_index_update_counts.setdefault(device, {})

    def _data(self, place: int) -> NDArray:
        return self._trainer._params[place].list_data()[0]
