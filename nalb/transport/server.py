"""The coordinator's body: one thread beside the ps-lite scheduler, one ROUTER socket, one file of events."""

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import IO

import numpy as np
import zmq

from nalb.batching.speed import Predictor
from nalb.errors import InputError, MachineError, NalbError, PeerError
from nalb.events import Row, SamplesEvent, encode_line
from nalb.failures import Cause, Failure
from nalb.measurement.estimators import ESTIMATORS, Estimator
from nalb.measurement.samples import Samples
from nalb.process.last_words import die
from nalb.protocol import messages as m
from nalb.protocol.observers import Measured
from nalb.protocol.state import Coordinator
from nalb.schemes import SCHEMES, Scheme
from nalb.settings import Settings
from nalb.transport.curvezmq import door_kept, node_of_user, secure_server
from nalb.transport.keys import own_keys

LAST_WORDS_MS = 2000  # how long an Abort may take to leave


class CoordinatorThread:
    """Serves the control plane while the with block runs; ends this process with the verdict if the job is aborted."""

    def __init__(
        self,
        settings: Settings,
        predictor: Callable[[int], Predictor] | None = None,
        schemes: Mapping[str, Scheme] = SCHEMES,
        estimators: Mapping[str, Callable[[int], Estimator]] = ESTIMATORS,
    ):
        """As Coordinator's."""
        self._settings, self._predictor, self._schemes, self._estimators = settings, predictor, schemes, estimators
        self._stop = threading.Event()
        self._state: Coordinator | None = None
        self._started: queue.Queue[Exception | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="nalb-coordinator", daemon=True)

    def __enter__(self) -> "CoordinatorThread":
        self._thread.start()
        failure = self._started.get()
        if failure is not None:
            raise failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)

    def told_to_end(self, by: str) -> Failure:
        """What the job was about when someone ended this process; any thread."""
        phase, iteration = (None, None) if self._state is None else self._state.moment()
        node = self._settings.node
        return Failure(
            cause=Cause.ENDED,
            detail=f"was ended by {by}",
            role="scheduler",
            node=node,
            phase=phase,
            iteration=iteration,
        )

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                context = stack.enter_context(zmq.Context())
                router = stack.enter_context(context.socket(zmq.ROUTER))
                router.setsockopt(zmq.LINGER, LAST_WORDS_MS)
                router.setsockopt(zmq.SNDHWM, 0)
                router.setsockopt(zmq.MAXMSGSIZE, m.FRAME_MOST)
                _bind_observers(router, self._settings)
                if keys := own_keys(self._settings):  # for what is bound from here on
                    stack.enter_context(door_kept(context, keys))
                    secure_server(router, keys)
                _bind(router, self._settings)
                log = _open_log(self._settings, stack)
            except Exception as failure:
                self._started.put(failure)
                return
            self._started.put(None)
            state = self._state = Coordinator(
                self._settings, time.monotonic(), self._predictor, self._schemes, self._estimators
            )
            members = None if keys is None else node_of_user(keys)
            try:
                self._serve(router, state, log, members)
            except Exception as error:
                why = (
                    str(error)
                    if isinstance(error, NalbError)
                    else f"failed as coordinator: {type(error).__name__}: {error}"
                )
                if isinstance(error, OSError) and log is not None:
                    why = f"cannot write {self._settings.samples_path} ({error.strerror}): make room"
                node = self._settings.node
                state.abort(Failure(cause=Cause.COORDINATOR, detail=why, role="scheduler", node=node), time.monotonic())
                _flush(router, state, None)
            verdict = state.verdict
        if verdict is not None:  # the sockets are closed: every Abort has left
            die(verdict)

    def _serve(
        self, router: "zmq.Socket[bytes]", state: Coordinator, log: IO[bytes] | None, members: dict[str, str] | None
    ) -> None:
        tick_ms = int(self._settings.heartbeat_s * 500)
        ticked_s = 0.0
        while not self._stop.is_set() and state.phase != "OVER":
            if router.poll(tick_ms):
                for _ in range(1000):  # a flood must not keep the deadlines from being looked at
                    try:
                        if members is None:
                            frames, node = router.recv_multipart(zmq.NOBLOCK), None
                        else:
                            frames, node = _receive_signed(router, members)
                    except zmq.Again:
                        break
                    _take(state, frames, node)
            if (now_s := time.monotonic()) - ticked_s >= tick_ms / 1000:  # it looks at every process
                state.tick(now_s)
                ticked_s = now_s
            _flush(router, state, log)


def _receive_signed(router: "zmq.Socket[bytes]", members: dict[str, str]) -> tuple[list[bytes], str | None]:
    """The frames, and the node whose key the sender has; None for an observer, who comes by a file of ours and has none."""
    frames = router.recv_multipart(zmq.NOBLOCK, copy=False)
    try:
        user = frames[-1].get("User-Id")
    except zmq.ZMQError:
        user = None
    return [frame.bytes for frame in frames], members.get(str(user))


def _take(state: Coordinator, frames: list[bytes], node: str | None = None) -> None:
    identity = frames[0]
    name = state.name_of(identity)
    peer = name or identity.decode("ascii", "replace")
    try:
        if len(frames) != 2:
            raise PeerError(f"{peer} sent {len(frames) - 1} frames instead of one")
        state.receive(identity, m.decode_at_coordinator(frames[1], peer), time.monotonic(), node)
    except PeerError as error:
        state.rejected["undecodable message"] += 1  # anyone can reach the port
        state.accuse(identity, f"cannot be understood: {error}", time.monotonic())


def _flush(router: "zmq.Socket[bytes]", state: Coordinator, log: IO[bytes] | None) -> None:
    encoded, frame = None, zmq.Frame()  # a plan goes to every worker: encoded once, and not copied for each
    while state.outbox:
        identity, message = state.outbox.popleft()
        if message is not encoded:
            encoded, frame = message, zmq.Frame(m.encode(message))
        router.send_multipart([identity, frame])
    if log is not None:
        for event in state.events:
            if isinstance(event, Measured):  # made rows of here, where no worker waits for its plan any more
                rows = sample_rows(event.samples, event.at_s)
                event = SamplesEvent(at_s=event.at_s, iteration=event.iteration, rows=rows)
            log.write(encode_line(event))
    state.events.clear()


def sample_rows(samples: Samples, first_s: float) -> list[Row]:
    """Samples as samples.jsonl has them: (source, target, is_push, bytes, start_us, end_us), times since `first_s`."""
    times_us = [np.rint((samples[name] - first_s) * 1e6) for name in ("start_s", "end_s")]
    columns = [samples["source"], samples["target"], samples["is_push"], samples["size_bytes"], *times_us]
    return list(zip(*(column.astype(np.int64).tolist() for column in columns), strict=True))


def _bind(router: "zmq.Socket[bytes]", settings: Settings) -> None:
    host, _, port = settings.endpoint.removeprefix("tcp://").rpartition(":")
    try:
        router.bind(f"tcp://{host}:{port}")
    except zmq.ZMQError as error:
        raise MachineError(
            f"the coordinator cannot listen on {host}:{port} ({error}): the port is taken or the address is not this host's; "
            "set NALB_COORDINATOR or DMLC_PS_ROOT_PORT"
        ) from None


def _bind_observers(router: "zmq.Socket[bytes]", settings: Settings) -> None:
    """The ipc address, where the mode of the socket's file is what keeps others out: whoever may write to it steers the job."""
    if not settings.observers:
        return
    path = settings.observers.removeprefix("ipc://")
    if len(os.fsencode(path)) > 107:
        raise InputError(
            f"NALB_OBSERVERS: the socket path {path} is longer than 107 bytes: use a shorter run directory"
        )
    umask = os.umask(0o177)
    try:
        router.bind(settings.observers)
    finally:
        os.umask(umask)


def _open_log(settings: Settings, stack: ExitStack) -> IO[bytes] | None:
    if settings.samples_path is None:
        return None
    try:
        return stack.enter_context(open(settings.samples_path, "ab", buffering=0))
    except OSError as error:
        raise InputError(f"NALB_SAMPLES={settings.samples_path}: {error.strerror}") from None
