"""Creates slots when the coordinator orders them, on a thread of its own, so that signs of life go on meanwhile."""

import queue
import threading
from collections.abc import Sequence

import mxnet as mx
from mxnet import nd

from kvstore_patch.store import ndarrays
from kvstore_patch.store.two_levels import Levels
from nalb.errors import one_line
from nalb.failures import Cause, Phase
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from nalb.transport.worker_session import WorkerSession

Orders = queue.SimpleQueue[m.PrepareSlots | None]  # None: no more will come


class SlotMaker:
    """Obeys each order in the queue once: to the servers a second creation would be a push."""

    def __init__(
        self, orders: Orders, session: WorkerSession, inner: mx.kvstore.KVStore, lock: threading.Lock, levels: Levels
    ):
        self.orders, self._session, self._inner, self._lock = orders, session, inner, lock
        self._levels = levels
        self._thread = threading.Thread(target=self._run, name="nalb-slots", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until all ordered slots are created, and end the thread."""
        self.orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self.orders.get()) is not None:
            if not self._session.protocol.is_new_order(order):
                continue
            try:
                self.make(order.slots)
            except Exception as error:
                client, why = self._session.client, f"cannot make slots: {one_line(error)}"
                client.send(wire.Failed(client.failure(Cause.PROCESS, why, Phase.PLAN, order.iteration)))
                continue
            self._session.client.send(m.SlotsReady(order.iteration, order.layout_version))

    def make(self, slots: Sequence[m.NewSlots]) -> None:
        """Create slots on servers, as the first push of a key does, and wait until they exist."""
        arrays = []
        for new in slots:
            for slot in range(new.first, new.first + new.count):
                array = nd.zeros((new.elements,), dtype=new.dtype)
                with self._lock:
                    for key in self._levels.slot_keys(new.server, slot):
                        self._inner.push(key, array)
                arrays.append(array)
        for array in arrays:
            ndarrays.wait_until_sent(array)
