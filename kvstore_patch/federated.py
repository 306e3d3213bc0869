"""Federated averaging with batch sizes that follow the clients' speeds (Chen et al., 3.5), with kvstore 'nalb'.

    rounds = federated.join(store, net.collect_params().values(), batch_size=100)
    while ...:
        size = rounds.begin()            # batch size of this client's steps in this round
        ... tau local steps with a Trainer of its own, kvstore=None
        rounds.end()                     # every client's model is now the mean of all models

Every client takes the same number of steps and keeps its learning rate. Every model has the same weight in the mean, whatever
its client's batch size.
"""

import time
from collections.abc import Iterable

import mxnet as mx
import psutil
from mxnet.kvstore.base import KVStoreBase

from kvstore_patch.batching import ChosenSizes, FixedSizes, SizeSource, first_sizes
from kvstore_patch.store import ndarrays
from kvstore_patch.store.kvstore import NALB, required
from nalb.errors import StoreError
from nalb.services.batching import messages as m

__all__ = ["Rounds", "join"]  # what nalb.mxnet hands on

FEDERATED = ("off", "lb-bsp-federated")  # values of --batching that fit rounds


class Rounds:
    """This client's rounds of local steps and averaging."""

    def __init__(self, store: NALB, arrays: list[mx.nd.NDArray], source: SizeSource):
        """store: averages. arrays: the model's, which are averaged. source: says how many samples each client computes."""
        self._store, self._arrays, self._source = store, arrays, source
        self._round, self._size = -1, 0
        self._begun_s = self._began_before_s = self._wait_s = self._cpu_s = 0.0

    def begin(self) -> int:
        """Begin a round and return the batch size of its steps. Waits until all clients have computed the round before."""
        asked_s = time.monotonic()
        self._size = self._source.sizes(self._round + 1)[self._store.rank]
        self._round += 1
        self._begun_s, self._began_before_s = time.monotonic(), self._begun_s
        self._wait_s, self._cpu_s = self._begun_s - asked_s, time.process_time()
        return self._size

    def end(self) -> float:
        """End a round, after its local steps: report their time and average the models. Returns that time in seconds."""
        mx.nd.waitall()
        elapsed_s = time.monotonic() - self._begun_s
        cpu_share = min(1.0, (time.process_time() - self._cpu_s) / (elapsed_s * len(psutil.Process().cpu_affinity())))
        period_s = self._begun_s - self._began_before_s if self._round else 0.0
        memory_share = psutil.virtual_memory().percent / 100
        report = m.Computed(self._round, self._size, elapsed_s, cpu_share, memory_share, period_s, self._wait_s)
        self._source.report(report)
        for array in self._arrays:
            ndarrays.settle(array)  # an evaluation changes the layout, which each slice would else change back
        self._store.pushpull(list(range(len(self._arrays))), self._arrays)
        for array in self._arrays:
            array /= self._store.num_workers
        mx.nd.waitall()
        return elapsed_s


def join(store: KVStoreBase, parameters: Iterable[mx.gluon.Parameter], batch_size: int) -> Rounds:
    """Join the rounds. Call it once in every client, before its Trainer's first step. All begin with rank 0's model.

    parameters: initialised, with known shapes. batch_size: this client's first batch size; the sum of the sizes over all clients
    never changes. Raises StoreError for another store or another --batching.
    """
    store = required(store, "federated rounds average")
    batching = store.settings.batching
    if batching not in (None, *FEDERATED):
        raise StoreError(f"--batching {batching} is for steps, not for rounds: choose one of {', '.join(FEDERATED)}")
    arrays = [parameter.data() for parameter in parameters]
    if batching is None:
        source: SizeSource = FixedSizes(first_sizes(store, batch_size, batch_size * store.num_workers))
    else:
        source = ChosenSizes(store.client, m.JoinBatching(batch_size, None))
    store.broadcast(list(range(len(arrays))), arrays, arrays)
    return Rounds(store, arrays, source)
