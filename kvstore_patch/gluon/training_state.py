"""Turns a net and its Trainer into arrays and numbers, and back: MXNet's own Trainer.save_states would write a pickle.

A weight's name is the one that save_parameters gives it. An optimizer's array is named by its parameter's name and its place in the
parameter's state: a parameter's index in the Trainer may differ between workers. The structure of that state is never read from a
file: the optimizer makes it anew, and the numbers are copied in. Counts of updates are kept, so Adam's bias correction and
learning-rate schedules go on where they were.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.ndarray import NDArray

from kvstore_patch.gluon.stock import NO_STATES
from kvstore_patch.store import ndarrays
from nalb.checkpoints.file import OptimizerState
from nalb.errors import CheckpointError

CHANGING = ("m_schedule", "last_lr", "cur_lr")  # numbers that Nadam and LARS keep between updates
UNSUPPORTED = ("LBSGD",)  # keeps arrays beside its state
Kind = tuple[tuple[int, ...], np.dtype[Any]]  # an array's shape and dtype


def collect(net: mx.gluon.Block, trainer: mx.gluon.Trainer) -> tuple[dict[str, npt.NDArray[Any]], OptimizerState]:
    """Copies of all weights and of the optimizer's state; waits until they are computed."""
    arrays = {f"weight/{name}": p.list_data()[0].asnumpy() for name, p in _weights(net, trainer).items()}
    optimizer, updater = trainer.optimizer, trainer._updaters[0]
    names = _names(net, trainer)
    for index in sorted(updater.states):
        for place, array in enumerate(leaves(updater.states[index])):
            arrays[f"state/{names[index]}/{place}"] = array.asnumpy()
    numbers = {name: getattr(optimizer, name) for name in CHANGING if hasattr(optimizer, name)}
    if optimizer.lr_scheduler is None:
        numbers["lr"] = optimizer.lr
    counts = {
        names[index]: n for index, n in optimizer._all_index_update_counts[trainer._contexts[0].device_id].items()
    }
    return arrays, OptimizerState(type(optimizer).__name__, optimizer.num_update, counts, numbers)


def apply(
    net: mx.gluon.Block, trainer: mx.gluon.Trainer, arrays: Mapping[str, npt.NDArray[Any]], state: OptimizerState
) -> None:
    """Put `arrays` and `state` into the net and its Trainer.

    Raises CheckpointError, before anything is changed, where net or optimizer are not those of the checkpoint.
    """
    parameters = _weights(net, trainer)
    _check(parameters, trainer, arrays, state)
    names = _names(net, trainer)
    indices = {name: index for index, name in enumerate(names)}
    if odd := sorted(state.updates.keys() - indices.keys()):
        raise CheckpointError(f"it is of another Trainer, which updated parameter {odd[0]} too: use another folder")
    updates = {indices[name]: count for name, count in state.updates.items()}
    optimizer, first = trainer.optimizer, trainer._contexts[0]
    wanted: dict[str, Kind] = {}
    for index in updates:
        made = optimizer.create_state_multi_precision(index, trainer._params[index].data(first))
        wanted |= {f"state/{names[index]}/{place}": _kind(array) for place, array in enumerate(leaves(made))}
    if wanted != {name: _kind(array) for name, array in arrays.items() if name.startswith("state/")}:
        raise CheckpointError("the optimizer's state is of another kind: same optimizer options?")
    for name, parameter in parameters.items():
        for array in parameter.list_data():  # the first forward pass may have changed its layout
            ndarrays.settle(array)
        parameter.set_data(arrays[f"weight/{name}"])
    for updater, context in zip(trainer._updaters, trainer._contexts, strict=True):
        for index in updates:
            made = optimizer.create_state_multi_precision(index, trainer._params[index].data(context))
            for place, array in enumerate(leaves(made)):
                array[:] = arrays[f"state/{names[index]}/{place}"]
            updater.states[index], updater.states_synced[index] = made, True
        counts = optimizer._all_index_update_counts.setdefault(context.device_id, {})
        counts.update(updates)
    optimizer.num_update = state.num_update
    for name, value in state.numbers.items():
        setattr(optimizer, name, value)


def check_supported(trainer: mx.gluon.Trainer) -> None:
    """Raise CheckpointError where the Trainer's state cannot be saved."""
    kind = type(trainer.optimizer).__name__
    if kind in UNSUPPORTED:
        raise CheckpointError(f"optimizer {kind} keeps what cannot be saved: choose another, or no checkpoints")
    if trainer._update_on_kvstore:
        raise CheckpointError(NO_STATES)


def _check(
    parameters: Mapping[str, mx.gluon.Parameter],
    trainer: mx.gluon.Trainer,
    arrays: Mapping[str, npt.NDArray[Any]],
    state: OptimizerState,
) -> None:
    kind = type(trainer.optimizer).__name__
    if kind != state.kind:
        raise CheckpointError(f"it is of optimizer {state.kind}, this training uses {kind}: use another folder")
    saved = {name.removeprefix("weight/") for name in arrays if name.startswith("weight/")}
    if odd := sorted(saved ^ parameters.keys()):
        raise CheckpointError(f"it is of another net: parameter {odd[0]} is not in both: use another folder")
    for name, parameter in parameters.items():
        array = arrays[f"weight/{name}"]
        if array.shape != parameter.shape or array.dtype != np.dtype(parameter.dtype):
            raise CheckpointError(
                f"it is of another net: parameter {name} is {array.dtype} of shape {array.shape} there and "
                f"{np.dtype(parameter.dtype)} of shape {parameter.shape} here: use another folder"
            )


def _weights(net: mx.gluon.Block, trainer: mx.gluon.Trainer) -> dict[str, mx.gluon.Parameter]:
    """The net's parameters, and what the Trainer trains outside it, such as a loss's. By name, as `_names`."""
    found: dict[str, mx.gluon.Parameter] = dict(net._collect_params_with_prefix())
    for name, parameter in zip(_names(net, trainer), trainer._params, strict=True):
        if found.setdefault(name, parameter) is not parameter:
            raise CheckpointError(
                f"two parameters are called {name}, one of the net and one outside it: rename the latter"
            )
    return found


def _names(net: mx.gluon.Block, trainer: mx.gluon.Trainer) -> list[str]:
    """The names of the Trainer's parameters, by index: as the weights' names, and outside the net the parameter's own name."""
    names: dict[int, str] = {}
    for name, parameter in net._collect_params_with_prefix().items():
        names.setdefault(id(parameter), name)  # one that layers share has several
    return [names.get(id(parameter), parameter.name) for parameter in trainer._params]


def _kind(array: NDArray | npt.NDArray[Any]) -> Kind:
    return array.shape, np.dtype(array.dtype)


def leaves(state: object) -> Iterator[NDArray]:
    """The arrays in an optimizer's state, which is None, an array, or nested tuples or lists of these."""
    if isinstance(state, NDArray):
        yield state
    elif isinstance(state, tuple | list):
        for one in state:
            yield from leaves(one)
    elif state is not None:
        raise CheckpointError(f"an optimizer's state holds {type(state).__name__}, which cannot be saved")
