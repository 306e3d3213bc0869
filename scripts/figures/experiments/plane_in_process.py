"""All ranks of a job in one process, to learn what rounding does to sums and to trainings.

The sums have the bits of a real job's, by construction: each rank has the agents' own AgentExchange, with its codecs, residuals and
order of adding. Only sockets are missing: messages wait in one queue. The bits of a sum do not depend on which part comes first
(sums.py), and a rank's residuals not on when its slices leave, so the queue's order does not matter either.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import zmq

from nalb.plane.codecs import codec_by
from nalb.plane.exchange import AgentExchange, sites_of
from nalb.plane.links import AgentLinks, SliceHeader
from nalb.plane.pushing import Cut
from nalb.planning.slices import Tensor, build_layout, wire_dtype
from nalb.protocol.wire import Levels
from nalb.services.exchange import messages as m

ALPHA_BYTES = 1000.0


class _Links:
    """What an exchange needs of AgentLinks: pushes and answers, into the queue of all."""

    def __init__(self, rank: int, job: "PlaneInProcess"):
        self._rank, self._job = rank, job

    def push(self, rank: int, header: SliceHeader, payload: Any, is_measured: bool) -> None:
        del is_measured
        frame = bytes(payload)
        self._job.queue.append(partial(self._job.take_push, self._rank, rank, header, frame))

    def answer(self, ranks: Sequence[int], of: SliceHeader, payload: Any, is_measured: bool) -> None:
        del is_measured
        frame = bytes(payload)
        for rank in ranks:
            self._job.queue.append(partial(self._job.take_answer, self._rank, rank, of, frame))


class PlaneInProcess:
    """The ranks, and what they sum."""

    def __init__(
        self,
        size: int,
        elements: Sequence[int],
        levels: Levels | None = None,
        verify: bool = False,
        dtype: str = "float32",
    ):
        """elements: of each tensor. levels: the sites; None: sums have one level. dtype: the script's."""
        self.queue: deque[Callable[[], None]] = deque()
        self.iteration = -1
        self.exchanges = [
            AgentExchange(cast("AgentLinks", _Links(rank, self)), rank, sites_of(size, levels), lambda *_: None, verify)
            for rank in range(size)
        ]
        self._values = [[np.zeros(count, np.float32) for count in elements] for _ in range(size)]
        self._elements, self._dtype, self.size = list(elements), dtype, size
        self.cut("float32")

    @property
    def values(self) -> list[list[npt.NDArray[np.float32]]]:
        """Of each rank and tensor: its part before an iteration, the sum after it."""
        return self._values

    def cut(self, precision: str, slice_bytes: float | None = None) -> None:
        """Cut the tensors for answers in this precision."""
        dtype = wire_dtype(self._dtype, precision)
        tensors = [Tensor(str(k), count, dtype, k) for k, count in enumerate(self._elements)]
        self.layout = build_layout(
            tensors,
            num_nodes=self.size,
            num_servers=self.size,
            alpha_bytes=ALPHA_BYTES,
            fixed_slice_bytes=slice_bytes,
        )
        self._cut = Cut(self.layout, precision)

    def sum(
        self,
        server_of_slice: Sequence[int],
        pushes: Sequence[str] = (),
        leaders: Sequence[m.SiteLeaders] = (),
        inflight_bytes: Sequence[int] = (),
    ) -> list[m.Sums | None]:
        """Sum all tensors once. Arguments are the plan's. Returns each rank's digests, where sums are verified."""
        self.iteration += 1
        plan = m.Plan(
            self.iteration, self.iteration, 0, "average", False, list(inflight_bytes), list(server_of_slice), [],
            list(leaders), list(pushes),
        )  # fmt: skip
        under_way = []
        for exchange, tensors in zip(self.exchanges, self._values, strict=True):
            under_way.append(exchange.begin(self.iteration, plan, self._cut))
            for number, tensor in enumerate(tensors):
                exchange.add_tensor(tensor)
                under_way[-1].make_ready(number, len(tensor))
        while sum(exchange.push() for exchange in self.exchanges) or self.queue:
            while self.queue:
                self.queue.popleft()()
        assert all(one.is_complete for one in under_way)
        return [exchange.end() for exchange in self.exchanges]

    def drop_kept(self) -> None:
        """Forget what rounding took, as if there were no error feedback."""
        for exchange in self.exchanges:
            exchange.residuals = None

    def take_push(self, source: int, target: int, header: SliceHeader, frame: bytes) -> None:
        """A slice that `source` has pushed."""
        values = codec_by(header.codec).decode(frame) if header.codec else np.frombuffer(frame, header.dtype)
        self.exchanges[target].pushed(source, header, values)

    def take_answer(self, source: int, target: int, header: SliceHeader, frame: bytes) -> None:
        """A sum that `source` has answered with."""
        values = self.exchanges[target].room(source, header)
        if header.codec:
            codec_by(header.codec).decode_into(frame, values)
            self.exchanges[target].answered(header, zmq.Frame(frame))
        else:
            values[:] = np.frombuffer(frame, header.dtype)
            self.exchanges[target].answered(header, None)
