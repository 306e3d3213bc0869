"""Computes tokens on Gluon blocks: a forward token keeps its tape, a backward token goes back through it. No threads, no sockets.

F_i computes block i of its input tokens' outputs, and keeps input, output and tape. B_i goes back through the tape of the F_i that
it mirrors. Where another worker computed that F_i, this worker fetches the input and computes F_i again; dropout then draws other
numbers. FB_M goes forward and back at once, and takes the loss of each sample.

Gradients are sums over samples: the step divides by the samples of the whole iteration.
"""

from collections.abc import Callable, Mapping, Sequence

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet import autograd
from mxnet.ndarray import NDArray

from kvstore_patch.fela.chunks import Chunks
from kvstore_patch.fela.gradients import Gradients
from nalb.errors import InputError
from nalb.services.tokens import messages as m
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Part
from nalb.tokens.shape import Shape

Loss = Callable[[NDArray, NDArray], NDArray]
Samples = tuple[NDArray, NDArray]  # with their labels
Batch = Callable[[Sequence[int]], Samples]  # of chunks
Fetched = Mapping[tuple[TokenId, Part], npt.NDArray[np.generic]]


class Compute:
    """Computes one worker's tokens."""

    def __init__(self, blocks: Sequence[mx.gluon.Block], loss: Loss, chunks: Chunks, gradients: Gradients):
        self._blocks, self._loss = blocks, loss
        self._chunks, self._gradients = chunks, gradients
        self._tapes: dict[TokenId, tuple[NDArray, NDArray]] = {}  # F_i -> its input and output
        self._loss_sum, self._loss_samples = 0.0, 0
        self._losses: list[NDArray] = []  # sums that are being computed

    def run(self, work: m.TokenWork, shape: Shape, batch: Batch, fetched: Fetched) -> None:
        """Compute a token; returns once its results are computed. fetched: the arrays that work.fetches names."""
        level, mirrors = work.token.level, work.mirrors
        computes_first = mirrors is not None and mirrors.level == 0 and mirrors not in self._tapes
        # The script may take long to read them, so others do not wait for that.
        samples = batch(work.chunks) if level in (0, shape.head) or computes_first else None
        with self._gradients.queueing:
            if level < shape.head:
                ready = self._forward(work, shape, self._input(work, level, samples, fetched))
            elif level == shape.head:
                ready = self._through(work, shape, samples, self._input(work, level, samples, fetched))
            else:
                ready = self._back(work, shape, samples, fetched)
        for array in ready:
            array.wait_to_read()
        for losses in self._losses:
            self._loss_sum += float(losses.asscalar())
        self._losses.clear()

    def free(self, complete: int) -> None:
        """Forget what the tokens of iterations up to `complete` left."""
        self._chunks.free(complete)
        self._tapes = {token: tape for token, tape in self._tapes.items() if token.iteration > complete}

    def take_loss(self) -> tuple[float, int]:
        """The sum of the losses taken on this worker since the last call, and their number of samples."""
        taken, self._loss_sum, self._loss_samples = (self._loss_sum, self._loss_samples), 0.0, 0
        return taken

    def _forward(self, work: m.TokenWork, shape: Shape, x: NDArray) -> list[NDArray]:
        output = self._record(work.token.level, x)
        self._tapes[work.token] = x, output
        self._chunks.keep(work.token, Part.INPUT, x, work.chunks, shape)
        self._chunks.keep(work.token, Part.OUTPUT, output, work.chunks, shape)
        return [output]

    def _through(self, work: m.TokenWork, shape: Shape, samples: Samples | None, x: NDArray) -> list[NDArray]:
        assert samples is not None
        labels, block = samples[1], self._blocks[work.token.level]
        with autograd.record():
            losses = self._loss(block(x), labels)
        if losses.shape[:1] != (_samples(work.chunks, shape),):
            raise InputError(f"the loss has shape {losses.shape}: give one for each sample, as Gluon's losses do")
        _back_through(losses, None)
        self._losses.append(losses.sum())
        self._loss_samples += _samples(work.chunks, shape)
        return self._leave(work, shape, x)

    def _back(self, work: m.TokenWork, shape: Shape, samples: Samples | None, fetched: Fetched) -> list[NDArray]:
        assert work.mirrors is not None
        tape = self._tapes.pop(work.mirrors, None)
        if tape is None:  # another worker has it
            sub_model = work.mirrors.level
            x = samples[0] if samples is not None else _fed(_local(fetched[work.mirrors, Part.INPUT]))
            tape = x, self._record(sub_model, x)
        x, output = tape
        _back_through(output, self._array(work.inputs[0], Part.GRADIENT, work.chunks, fetched))
        self._chunks.drop(work.mirrors)
        return self._leave(work, shape, x)

    def _input(self, work: m.TokenWork, sub_model: int, samples: Samples | None, fetched: Fetched) -> NDArray:
        if sub_model == 0:
            assert samples is not None
            return samples[0]
        outputs = [self._array(one, Part.OUTPUT, work.chunks, fetched) for one in work.inputs]
        return _fed(outputs[0].detach() if len(outputs) == 1 else mx.nd.concat(*outputs, dim=0))

    def _array(self, token: TokenId, part: Part, chunks: Sequence[int], fetched: Fetched) -> NDArray:
        there = fetched.get((token, part))
        return self._chunks.get(token, part, chunks) if there is None else _local(there)

    def _record(self, sub_model: int, x: NDArray) -> NDArray:
        with autograd.record():
            output = self._blocks[sub_model](x)
        if not isinstance(output, NDArray) or output.shape[:1] != x.shape[:1]:
            raise InputError(f"sub-model {sub_model + 1} must return one array with a row for each sample")
        return output

    def _leave(self, work: m.TokenWork, shape: Shape, x: NDArray) -> list[NDArray]:
        """Add a backward pass's gradients to the sums and keep its input's gradient. Returns arrays that are ready with them."""
        sub_model = shape.sub_model(work.token.level)
        ready = self._gradients.add(work.token.iteration, sub_model, _samples(work.chunks, shape))
        if sub_model == 0:
            return ready
        assert x.grad is not None
        self._chunks.keep(work.token, Part.GRADIENT, x.grad, work.chunks, shape)
        return [*ready, x.grad]


def _back_through(output: NDArray, gradient: NDArray | None) -> None:
    """Backpropagate and keep the tape while the output exists: freeing it breaks tapes that share running statistics with it."""
    autograd.backward([output], None if gradient is None else [gradient], retain_graph=True)


def _samples(chunks: Sequence[int], shape: Shape) -> int:
    return sum(len(shape.samples_of(chunk)) for chunk in chunks)


def _local(there: npt.NDArray[np.generic]) -> NDArray:
    return mx.nd.array(there, dtype=there.dtype)


def _fed(x: NDArray) -> NDArray:
    """The input `x`, prepared to receive its gradient."""
    x.attach_grad()
    return x
