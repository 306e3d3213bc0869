"""Compares nalb's schemes with a peer: ring all-reduce by PyTorch's gloo, which takes its turns on the same network.

The ring has the job's workers and no servers. `Ring` serves `compare` as the Observer of a held job does: it takes blocks and
answers with events. It also appends its iterations to the run's samples.jsonl.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec
import zmq

from nalb.compare.peers.messages import End, Iterated, Joined, Run
from nalb.events import AnyEvent, BlockEvent, IdleEvent, IterationEvent
from nalb.extras import require
from nalb.launch.roles import Place, ProcessSpec, Program
from nalb.launch.run_dir import append_event
from nalb.options import JobOptions
from nalb.planning.nodes import Node
from nalb.process.own_program import own_argv
from nalb.protocol import wire
from nalb.transport.observer import arriving

RING = "gloo"


def require_torch() -> None:
    """Raise MachineError where PyTorch is not installed."""
    require("torch", f"scheme {RING!r}", ", or leave it out")


def ring_program(model: str, compute_ms: float) -> Program:
    """A ring worker for each place with a worker; the first gathers the others at the root port.

    The workers connect to the address of observers, where a Ring has to be.
    """

    def specs(
        places: Sequence[Place],
        options: JobOptions,
        inherited: Mapping[str, str],
        keys_dir: str | None,
        extra: Mapping[str, str],
    ) -> list[ProcessSpec]:
        del inherited, keys_dir
        workers = [place for place in places if place.is_worker]
        shared = dict(extra) | {
            "WORLD_SIZE": str(len(workers)), "MASTER_ADDR": workers[0].address, "MASTER_PORT": str(options.root_port),
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        flags = ("--compute-ms", str(compute_ms), "--address", str(options.observers))
        argv = tuple(own_argv("nalb.compare.peers.ring_worker", model, *flags))
        return [
            ProcessSpec(place.name, "worker", argv, shared | {"RANK": str(rank), "NALB_NODE": place.name})
            for rank, place in enumerate(workers)
        ]

    return Program(specs, require_torch, lambda _: False)


class Ring:
    """Tells the ring's workers when to iterate and gathers their times. It must be used by one thread only.

    nodes: the nodes of the job whose bound is noted with the ring's iterations; the workers among them form the ring. bound_of:
    the bound of that job, in seconds, at configured rates.
    """

    def __init__(
        self, address: str, nodes: Sequence[Node], bound_of: Callable[[wire.Configured], float], samples_path: Path
    ):
        self._bound_of, self._path = bound_of, samples_path
        self._names = [node.name for node in nodes if node.is_worker]
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 500)
        umask = os.umask(0o177)  # the mode of the socket's file keeps other users out
        try:
            self._socket.bind(address)
        finally:
            os.umask(umask)
        self._joined: set[int] = set()
        self._reports: list[deque[Iterated]] = [deque() for _ in self._names]
        self._bound_s: float | None = None
        self._iteration = self._left = self._block = 0

    def __enter__(self) -> "Ring":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()

    def last_events(self) -> Iterator[AnyEvent]:
        """Yield nothing: no worker says anything at its end."""
        return iter(())

    def send(self, message: wire.Message) -> None:
        """Take a message that a job's coordinator would take: the configured rates, a block, or the end."""
        if isinstance(message, wire.Configured):
            self._bound_s = self._bound_of(message)
        elif isinstance(message, wire.RunBlock):
            self._left = self._block = message.iterations
            self._tell_all(Run(message.iterations))
        elif isinstance(message, wire.EndJob):
            self._tell_all(End())

    def events(self, for_s: float) -> Iterator[AnyEvent]:
        """Yield the events of the next `for_s` seconds.

        IdleEvent comes once all workers have joined, IterationEvent after each iteration, BlockEvent after a block's last one.
        """
        for identity, frame in arriving(self._socket, for_s):
            message = msgspec.json.decode(frame, type=Joined | Iterated)
            if isinstance(message, Joined):
                self._joined.add(int(identity))
                if len(self._joined) == len(self._names):
                    yield IdleEvent(at_s=time.monotonic())
                continue
            self._reports[int(identity)].append(message)
            if all(self._reports):
                yield self.complete([reports.popleft() for reports in self._reports])
                self._left -= 1
                if not self._left:
                    yield BlockEvent(at_s=time.monotonic(), scheme=RING, iterations=self._block)

    def _tell_all(self, message: Run | End) -> None:
        for rank in self._joined:
            self._socket.send_multipart([str(rank).encode(), msgspec.json.encode(message)])

    def complete(self, reports: list[Iterated]) -> IterationEvent:
        """Write and return the event of an iteration that all workers have reported, each by one report in the nodes' order."""
        told = dict(zip(self._names, reports, strict=True))
        started_s = {name: one.started_s for name, one in told.items()}
        event = IterationEvent(
            at_s=time.monotonic(),
            iteration=self._iteration,
            scheme=RING,
            communication_s={name: one.finished_s - one.started_s for name, one in told.items()},
            iteration_s={name: one.iteration_s for name, one in told.items()},
            plan_wait_s=dict.fromkeys(told, 0.0),
            started_s=started_s,
            computed_s=started_s,  # the gradients of a replay are all ready at once
            finished_s={name: one.finished_s for name, one in told.items()},
            bound_s=self._bound_s,
        )
        self._iteration += 1
        append_event(self._path, event)
        return event
