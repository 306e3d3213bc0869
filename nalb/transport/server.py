"""Runs the coordinator: one thread beside the ps-lite scheduler, with two sockets (processes, observers).

A second thread writes the file of events. The first one also answers signs of life, so it must not wait for a disk.
"""

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import TracebackType

import numpy as np
import zmq

from nalb.batching.speed import Predictor
from nalb.errors import InputError, MachineError, NalbError, PeerError
from nalb.events import Row, SamplesEvent, encode_line
from nalb.failures import Cause, Failure
from nalb.measurement.estimates import Estimate
from nalb.measurement.estimators import ESTIMATORS, Estimator
from nalb.measurement.samples import Samples
from nalb.measurement.traffic import Traffic
from nalb.process.last_words import die
from nalb.process.line_file import LineWriter
from nalb.protocol import wire
from nalb.protocol.coordinator import Coordinator
from nalb.protocol.observers import Measured
from nalb.schemes import SCHEMES, Scheme
from nalb.services import composition
from nalb.services.composition import new_coordinator
from nalb.services.exchange.planes import AGENTS, Plane
from nalb.settings import Settings
from nalb.transport.conversations import Conversations, bound
from nalb.transport.curvezmq import door_kept, node_of_user, secure_server
from nalb.transport.keys import own_keys
from nalb.transport.observer_door import ObserverDoor

JOB_BYTES = 8  # random ones in a job's name
LAST_WORDS_MS = 2000  # the time that an Abort may take to leave
LAST_EVENTS_S = 5.0  # for the disk to take them; the launcher waits 7 s for the coordinator once all have left
FAREWELL_S = 5.0  # for workers whose connections were reset to hear that all have left; less than those 7 s
OWN_PART = 0.75  # of the silence that processes allow: the rest is as old as what they heard last may be
BEATS = 18  # parts of a limit, which are counted: time in which this process was stopped counts as one part
LEFT_CHECK_S = 0.5  # between two looks at whether the thread, which ends with an aborted job, lives


class CoordinatorThread:
    """Serves the control plane during the with block; ends this process with the verdict if the job is aborted."""

    def __init__(
        self,
        settings: Settings,
        predictor: Callable[[int], Predictor] | None = None,
        schemes: Mapping[str, Scheme] = SCHEMES,
        estimators: Mapping[str, Callable[[int], Estimator]] = ESTIMATORS,
        plane: Plane = AGENTS,
    ):
        """The arguments are those of new_coordinator."""
        self._settings = settings
        self._new_coordinator = partial(
            new_coordinator,
            settings,
            predictor=predictor,
            schemes={name: timed(scheme, settings) for name, scheme in schemes.items()},
            estimators={
                name: new if name in ESTIMATORS else partial(TimedEstimator, new, settings)
                for name, new in estimators.items()
            },
            plane=plane,
            job=secrets.token_hex(JOB_BYTES),
        )
        self._stop, self._have_left = threading.Event(), threading.Event()
        self._started: queue.Queue[Exception | None] = queue.Queue()
        self.port = 0  # where it listens, once it has been entered
        self._thread = threading.Thread(target=self._run, name="nalb-coordinator", daemon=True)

    def __enter__(self) -> "CoordinatorThread":
        self._thread.start()
        failure = self._started.get()
        if failure is not None:
            raise failure
        # No daemon: Python ends such a thread in the middle of C++.
        with suppress(RuntimeError):  # there is no room for a thread
            threading.Thread(target=composition.import_ahead, name="nalb-import").start()
        return self

    def wait(self) -> None:
        """Wait until all processes of the job have left, and workers know it, or had time to hear it."""
        while self._thread.is_alive() and not self._have_left.wait(LEFT_CHECK_S):
            pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=LAST_EVENTS_S + 5.0)

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                context = stack.enter_context(zmq.Context())
                router = stack.enter_context(context.socket(zmq.ROUTER))
                router.setsockopt(zmq.LINGER, LAST_WORDS_MS)
                router.setsockopt(zmq.SNDHWM, 0)
                router.setsockopt(zmq.MAXMSGSIZE, wire.FRAME_MOST)
                # without this option a process that connects anew is ignored until its old connection is known to be dead
                router.setsockopt(zmq.ROUTER_HANDOVER, 1)
                bound(router, self._settings.silence_s)
                door = open_door(context, self._settings, stack)
                if keys := own_keys(self._settings):  # the observers' door, bound before, stays unencrypted
                    stack.enter_context(door_kept(context, keys))
                    secure_server(router, keys)
                _bind(router, self._settings)
                self.port = int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
                log = open_log(self._settings)
            except Exception as failure:
                self._started.put(failure)
                return
            self._started.put(None)
            state = self._new_coordinator(time.monotonic())
            members = None if keys is None else node_of_user(keys)
            talks = Conversations(router)
            try:
                self._serve(router, talks, door, state, log, members)
            except BaseException as error:  # such as a KeyboardInterrupt that a user's scheme raises
                self._abort(state, error)
                flush(talks, state, None, door)
            try:  # only now, since an Abort must not wait for a disk
                if log is not None:
                    log.finish(LAST_EVENTS_S)
            except MachineError as error:
                self._abort(state, error)
                flush(talks, state, None, door)
            verdict = state.verdict
        if verdict is not None:  # the sockets are closed, so every Abort has left
            die(verdict)

    def _abort(self, state: Coordinator, error: BaseException) -> None:
        why = str(error) if isinstance(error, NalbError) else f"failed as coordinator: {type(error).__name__}: {error}"
        failure = Failure(cause=Cause.COORDINATOR, detail=why, role="scheduler", node=self._settings.node)
        if isinstance(error, InputError):  # such as what a user's estimator returns: no process is at fault
            failure = Failure(cause=Cause.REFUSED, detail=why)
        state.abort(failure, time.monotonic())

    def _serve(
        self,
        router: "zmq.Socket[bytes]",
        talks: Conversations,
        door: ObserverDoor | None,
        state: Coordinator,
        log: LineWriter | None,
        members: dict[str, str] | None,
    ) -> None:
        heartbeat_s = self._settings.heartbeat_s
        tick_ms = int(heartbeat_s * 500)
        ticked_s = 0.0
        farewell_s = min(FAREWELL_S, self._settings.silence_s)
        poller = zmq.Poller()
        for socket in (router, *([door.socket] if door else [])):
            poller.register(socket, zmq.POLLIN)
        looked_s = time.monotonic()  # when it was last asked what has arrived: what came later is not silence
        while not self._stop.is_set() and state.phase != "OVER":
            due_s = looked_s + tick_ms / 1000
            arrived = poller.poll(tick_ms)
            looked_s = time.monotonic()
            if (overslept_s := looked_s - due_s) > heartbeat_s:  # stopped, without a CPU, or at work
                state.overslept(overslept_s, looked_s)
            if arrived:
                for _ in range(1000):  # bounded, so that a flood of messages does not delay the deadlines
                    try:
                        if members is None:
                            frames, node = router.recv_multipart(zmq.NOBLOCK), None
                        else:
                            frames, node = receive_signed(router, members)
                    except zmq.Again:
                        break
                    take_message(talks, state, frames, node)
                for frames in door.arrived() if door else ():
                    take_of_observer(state, frames)
            if looked_s - ticked_s >= tick_ms / 1000:  # rarely, since a tick looks at every process
                state.tick(looked_s)
                ticked_s = looked_s
                if door:
                    door.catch_up(looked_s)
            flush(talks, state, log, door)
            if state.have_all_left and (
                talks.have_confirmed(worker.identity for worker in state.members.workers)
                or looked_s - state.members.last_goodbye_s > farewell_s
            ):
                self._have_left.set()


def timed(scheme: Scheme, settings: Settings) -> Scheme:
    """A user's own scheme, whose `decide` ends this process before others take it for dead, as nobody answers them meanwhile."""
    if not scheme.place or scheme.decide is None:
        return scheme
    limit = _limit(f"scheme {scheme.name} has not decided", scheme.place, settings)
    return replace(scheme, decide=_ends_process(*limit)(scheme.decide))


class TimedEstimator:
    """A user's own estimator, whose calls end this process as a scheme's do."""

    def __init__(self, new_estimator: Callable[[int], Estimator], settings: Settings, num_nodes: int):
        """The first two make it: the user's, and the job's options."""
        self._own = own = new_estimator(num_nodes)
        self._limit = _limit(f"estimator {settings.estimator} has not answered", getattr(own, "place", ""), settings)

    def observe(self, traffic: Traffic) -> bool:
        """As Estimator's."""
        with _ends_process(*self._limit):
            return self._own.observe(traffic)

    def estimate(self) -> Estimate:
        """As Estimator's."""
        with _ends_process(*self._limit):
            return self._own.estimate()


def _limit(what: str, place: str, settings: Settings) -> tuple[float, Failure]:
    """How long code of a user's may take, in seconds, and the failure of one that takes longer."""
    limit_s = OWN_PART * settings.silence_s
    why = (
        f"{what} within {limit_s:g} s ({place}), and nobody hears from the coordinator meanwhile: make it faster, or give the job "
        "a longer --deadline-s"
    )
    return limit_s, Failure(cause=Cause.COORDINATOR, detail=why, role="scheduler", node=settings.node)


@contextmanager
def _ends_process(limit_s: float, failure: Failure) -> Iterator[None]:
    """A context, or a decorator, that ends this process if it lasts longer than limit_s, while the process itself runs."""
    is_over = threading.Event()

    def watch() -> None:
        for _ in range(BEATS):
            if is_over.wait(limit_s / BEATS):
                return
        die(failure, InputError.exit_code)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def receive_signed(router: "zmq.Socket[bytes]", members: dict[str, str]) -> tuple[list[bytes], str | None]:
    """Receive a message: its frames, and the node whose key the sender has."""
    frames = router.recv_multipart(zmq.NOBLOCK, copy=False)
    try:
        user = frames[-1].get("User-Id")
    except zmq.ZMQError:
        user = None
    return [frame.bytes for frame in frames], members.get(str(user))


def take_message(talks: Conversations, state: Coordinator, frames: list[bytes], node: str | None = None) -> None:
    """Take one message of a process: a message with its envelope, or a sign of life on the second connection."""
    identity, *rest = frames
    name = state.name_of(identity)
    peer = name or identity.decode("ascii", "replace")
    try:
        if len(rest) not in (1, 2):
            raise PeerError(f"{peer} sent {len(rest)} frames instead of one or two")
        frame = rest[0] if len(rest) == 1 else talks.opened(identity, rest)
        if frame is not None:
            message = composition.decode_at_coordinator(frame, peer)
            if isinstance(message, wire.FromObserver):
                raise PeerError(f"{peer} sent {type(message).__name__}: observers have a socket of their own")
            if len(rest) == 1 and not isinstance(message, wire.Still):
                raise PeerError(f"{peer} sent {type(message).__name__} without an envelope")
            state.receive(identity, message, time.monotonic(), node)
    except PeerError as error:
        state.rejected["undecodable message"] += 1  # anyone can reach the port
        state.accuse(identity, f"cannot be understood: {error}", time.monotonic())
    if state.name_of(identity) is None:
        talks.forget(identity)


def take_of_observer(state: Coordinator, frames: list[bytes]) -> None:
    """Take one message of an observer."""
    identity, *rest = frames
    try:
        if len(rest) != 1:
            raise PeerError(f"an observer sent {len(rest)} frames instead of one")
        message = composition.decode_at_coordinator(rest[0], "an observer")
        if not isinstance(message, wire.FromObserver):
            raise PeerError(f"an observer sent {type(message).__name__}, which processes of the job send")
        state.receive(identity, message, time.monotonic())
    except PeerError:
        state.rejected["undecodable message"] += 1


def flush(talks: Conversations, state: Coordinator, log: LineWriter | None, door: ObserverDoor | None = None) -> None:
    """Send what the coordinator has to say, and have its events written. Each plan is encoded once."""
    encoded, frame = None, zmq.Frame()  # a plan that goes to every worker is encoded once and not copied
    while state.outbox:
        identity, message = state.outbox.popleft()
        if message is not encoded:
            encoded, frame = message, zmq.Frame(wire.encode(message))
        if not isinstance(message, wire.Told):
            talks.send(identity, message, frame)
        elif door is None or not door.tell(identity, message, frame):
            state.forget_observer(identity)
    if log is not None:
        for event in state.events:
            if isinstance(event, Measured):  # the rows are made here, after the plans have left for the workers
                rows = sample_rows(event.samples, event.at_s)
                event = SamplesEvent(at_s=event.at_s, iteration=event.iteration, rows=rows)
            log.append(encode_line(event))
    state.events.clear()


def sample_rows(samples: Samples, first_s: float) -> list[Row]:
    """Samples as rows of samples.jsonl: (source, target, is_push, bytes, start_us, end_us), with times since `first_s`."""
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
            "start again where nalb chooses the port, as with --local, or choose another root port: root_port in the hosts file, "
            "--root HOST:PORT, or under other launchers DMLC_PS_ROOT_PORT or NALB_COORDINATOR"
        ) from None


def open_door(context: "zmq.Context[zmq.Socket[bytes]]", settings: Settings, stack: ExitStack) -> ObserverDoor | None:
    """The observers' socket; None where settings name none."""
    if not settings.observers:
        return None
    socket = stack.enter_context(context.socket(zmq.ROUTER))
    socket.setsockopt(zmq.LINGER, LAST_WORDS_MS)
    return ObserverDoor(socket, settings.observers, settings.num_workers + settings.num_servers)


def open_log(settings: Settings) -> LineWriter | None:
    """The file of the job's events; None where settings name none. Raises InputError where it cannot be made."""
    if settings.samples_path is None:
        return None
    try:
        return LineWriter(settings.samples_path)
    except OSError as error:
        raise InputError(
            f"NALB_SAMPLES={settings.samples_path}: {error.strerror}: name a file in a folder where it can be written"
        ) from None
