"""A front end that is not MXNet's KVStore: calls name arrays of numpy. Each worker runs `python toy_front_end.py learns|knows`.

Iterations have two calls. They are learned, as from a script's calls, or known from the beginning, as from a compiled graph.
"""

import os
import socket
import sys

import numpy as np
from mxnet import nd

from kvstore_patch.store.exchange import WorkerExchange
from nalb.services.exchange.recorder import IterationRecorder, PlaceInIteration
from nalb.settings import from_environment

ITERATIONS = 12
CALLS = [{"weight": (300, 200), "bias": (7,)}, {"embedding": (1000, 50)}]  # name -> shape


class Toy:
    """Sums of numpy's arrays."""

    def __init__(self, iteration):
        """iteration: shapes by name for each of its calls; None: it is learned."""
        self.exchange, self._recorder, self._buffers = WorkerExchange(SETTINGS), IterationRecorder(), {}
        self._calls = iteration and [self._call(shapes) for shapes in iteration]
        self._number = -1

    def add_up(self, arrays):
        """The sums over all workers, by name."""
        call = self._call({name: array.shape for name, array in arrays.items()})
        for name, array in arrays.items():
            self._buffers[name][:] = array
        self.exchange.add_up(call, self._place(call))
        return {name: self._buffers[name].asnumpy() for name in arrays}

    def _call(self, shapes):
        for name, shape in shapes.items():
            if name not in self._buffers:
                self._buffers[name] = nd.zeros(shape)
        buffers = [[self._buffers[name]] for name in shapes]
        return self.exchange.prepare(list(shapes), buffers, buffers)

    def _place(self, call):
        if self._calls is None:
            return self._recorder.place(call.group)
        is_first, self._number = self._number < 0, (self._number + 1) % len(self._calls)
        learned = tuple(known.group for known in self._calls) if is_first else ()
        return PlaceInIteration(self._number, self._number == len(self._calls) - 1, learned)


SETTINGS = from_environment(os.environ, socket.gethostname())
toy = Toy(CALLS if sys.argv[1] == "knows" else None)
random = [np.random.default_rng(rank) for rank in range(SETTINGS.num_workers)]
for iteration in range(ITERATIONS):
    for shapes in CALLS:
        of_all = [
            {name: one.integers(-99, 99, shape).astype(np.float32) for name, shape in shapes.items()} for one in random
        ]
        sums = toy.add_up(of_all[toy.exchange.rank])
        for name in shapes:
            assert (sums[name] == sum(arrays[name] for arrays in of_all)).all(), (iteration, name)
