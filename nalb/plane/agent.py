"""`python -P -m nalb.plane.agent FD`: the process beside a training process that pushes, sums and answers for its rank.

FD is a socket to the training process (orders.py). One loop waits for everything: orders, slices, sums, and what threads of the
control plane hand over. It never waits for one thing alone. So a training process that computes for an hour, or holds its
interpreter's lock, keeps nobody from its agent's sums, and signs of life come from the agent.

The agent ends with its training process, which it watches by a pidfd: a forked child of that may hold the socket open. After Leave
it stays until all ranks have left, for they may still need its answers. Signals to the whole process group are the script's: it may
handle them, and go on for a while. So the agent ignores them, and so does its coordinator, which inherits that.
"""

import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import zmq

from nalb.errors import NalbError, one_line
from nalb.failures import Cause, Failure, Phase
from nalb.plane import orders
from nalb.plane.exchange import AgentExchange, sites_of
from nalb.plane.iterations import RankIterations
from nalb.plane.links import AgentLinks
from nalb.plane.memory import mapped
from nalb.plane.rendezvous import END, told_agents
from nalb.plane.training import Training
from nalb.process import last_words
from nalb.process.exhaustion import raise_file_limit
from nalb.process.kernel_calls import open_process
from nalb.process.last_words import die
from nalb.process.own_program import own_argv
from nalb.process.proc import Stop, stopped_at
from nalb.protocol import wire
from nalb.services.batching.messages import BatchSizes, Computed, JoinBatching
from nalb.services.exchange import messages as m
from nalb.settings import Settings, for_agents
from nalb.transport.client import Client
from nalb.transport.curvezmq import knock
from nalb.transport.keys import own_keys
from nalb.transport.reachability import Reachability, reach_kept

ORDERS_AT_ONCE = 64
OF_THE_SCRIPT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
CHECK_S = 0.5  # between looks at the training process
# Freed memory stays with the process: sums of slices come and go, and fresh pages cost as much as the sums (mallopt(3)).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, KEPT_BYTES = -1, -3, (1 << 30, 32 << 20)


class Agent:
    """Serves one training process."""

    def __init__(self, training: Training, start: orders.Start):
        """start: its first order."""
        self._training, self._start = training, start
        self._client: Client | None = None
        self._iterations: RankIterations | None = None
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._is_leaving = self._has_left = False
        self._checked_s = 0.0  # when the training process was last looked at
        self._stop = Stop()  # of it
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # what other threads want done
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._act: dict[Any, Callable[[], None]] = {}

    def run(self) -> None:
        """Serve until all ranks have left. Raises NalbError."""
        start = self._start
        place = "tcp://0.0.0.0:0"  # of the coordinator, until it is known
        self._settings = for_agents(os.environ, node=start.node, endpoint=place, size=start.size, role="agent")
        told = told_agents(os.environ, start.size)
        self._links = AgentLinks(start.address, told[start.rank][1] if told else 0, own_keys(self._settings))
        self._watch(self._training.socket.fileno(), self._read_orders)
        self._watch(self._bell, self._hear)
        try:
            pidfd = open_process(self._training.pid)
            self._watch(pidfd, partial(self._training_ended, pidfd))
        except ProcessLookupError:
            self._training_ended()
        self._listen()
        while not self._has_left:
            may_go_on = self._iterations is not None and self._iterations.may_go_on
            for one, _ in self._poller.poll(0 if may_go_on else int(1000 * CHECK_S)):
                if not self._has_left and (act := self._act.get(one)):  # an earlier one may have ended this one's watch
                    act()
            if self._iterations is not None:
                self._iterations.go_on()
            if self._training.waiting:
                self._training.flush()
            self._watch_writing()
            self._check_training()

    def _watch(self, one: Any, act: Callable[[], None]) -> None:
        self._act[one] = act
        self._poller.register(one, zmq.POLLIN)

    def _unwatch(self, one: Any) -> None:
        if self._act.pop(one, None) is not None:
            self._poller.unregister(one)

    def _watch_writing(self) -> None:
        """Wait for room in the training process's socket while orders wait for it."""
        one = self._training.socket.fileno()
        if one in self._act:
            self._poller.modify(one, zmq.POLLIN | (zmq.POLLOUT if self._training.waiting else 0))

    # ---- joining the job

    def _listen(self) -> None:
        """Say where this agent listens, and its coordinator, once it does."""
        start = self._start
        if not start.starts_coordinator:
            self._training.tell(orders.Listening(self._links.address))
            return
        argv = own_argv("nalb.plane.coordinator", f"{start.address}:0", str(start.size), start.node)
        process = self._coordinator = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        last_words.hand_to(self._end_stopped_coordinator)
        assert process.stdout is not None
        told = process.stdout.fileno()

        def has_told() -> None:
            self._unwatch(told)
            if not (port := os.read(told, 16).decode().strip()):
                self.fail(
                    self.failure(Cause.COORDINATOR, "has no coordinator, which failed at its start: see its error")
                )
            self._training.tell(orders.Listening(self._links.address, f"{start.address}:{port}"))

        self._watch(told, has_told)

    def _meet(self, order: orders.Peers) -> None:
        hosts = frozenset(one.removeprefix("tcp://").rpartition(":")[0] for one in order.addresses)
        watched = self._settings.addresses or hosts
        settings = self._settings = replace(self._settings, endpoint=f"tcp://{order.coordinator}", addresses=watched)
        threading.Thread(target=self._join, args=(settings, order.addresses), name="nalb-join", daemon=True).start()

    def _join(self, settings: Settings, addresses: list[str]) -> None:
        """On a thread: come to the coordinator, and wait for all others. addresses: of all agents, by rank."""
        try:
            with reach_kept(settings):
                if (keys := own_keys(settings)) is not None:
                    knock(keys, settings.endpoint, settings.startup_s)
                hello = wire.Hello(wire.VERSION, "agent", settings.node, self._start.rank, os.getpid())
                client = Client.of(settings, hello, self._links.timings)
                welcome = client.wait_for(wire.Welcome)
            self._put(partial(self._joined, client, addresses), welcome)
        except Exception as error:
            die(self.failure(Cause.PROCESS, one_line(error)))

    def _joined(self, client: Client, addresses: list[str], welcome: wire.Welcome) -> None:
        self._client = client
        reach = Reachability(self._settings, client.fail, lambda ways: client.note(ways=ways))
        sites = sites_of(self._start.size, welcome.levels)
        links, tell = self._links, self._training.tell
        # not before: addresses may be those of another job, which does not welcome this agent
        links.connect(self._start.rank, addresses, welcome.job)
        precision, verify = self._settings.precision, self._settings.verify_sums
        exchange = AgentExchange(links, self._start.rank, sites, lambda *sums: tell(orders.Summed(*sums)), verify)

        def leave() -> None:
            reach.close()
            client.send(wire.Goodbye())

        self._iterations = RankIterations(client, exchange, tell, leave, precision)
        self._watch(links.server, partial(links.read_pushes, exchange))
        for rank, peer in links.peers.items():
            self._watch(peer.socket, partial(links.read_answers, rank, exchange))
        hear = self._iterations.hear
        acts: dict[type, Callable[[Any], None]] = {
            m.Setup: hear,
            m.Plan: hear,
            m.Finish: hear,
            m.CallAgreed: tell,
            m.Measure: lambda _: None,  # plans say that too
            BatchSizes: tell,
            wire.Farewell: lambda _: self._part(client),
        }
        for kind, act in acts.items():
            client.on(kind, partial(self._put, act))
        tell(orders.AllJoined())

    # ---- what comes from the control plane and from the training process

    def _put(self, act: Callable[[Any], None], message: wire.Message) -> None:
        """On another thread: let the agent's own act upon a message."""
        self._news.put(partial(act, message))
        os.eventfd_write(self._bell, 1)

    def _hear(self) -> None:
        """Take in what threads have handed over."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while not self._has_left and not self._news.empty():
            self._news.get()()

    def _read_orders(self) -> None:
        for _ in range(ORDERS_AT_ONCE):
            try:
                read = self._training.read()
            except EOFError:
                self._training_ended(self._training.socket.fileno())
                return
            if read is None:
                return
            order, descriptor = read
            if isinstance(order, orders.Segment):
                assert self._iterations is not None, "it has heard AllJoined"
                assert descriptor is not None, "it comes with the order"
                self._iterations.memory = mapped(order.size_bytes, descriptor)
            elif isinstance(order, orders.Peers):
                self._meet(order)
            elif isinstance(order, orders.Leave):
                self._leave(order)
            elif isinstance(order, JoinBatching | Computed):
                if self._client is not None:  # it has heard AllJoined
                    self._client.send(order)
            elif self._iterations is not None:  # it has heard AllJoined
                self._iterations.take(order)

    # ---- the end

    def fail(self, failure: Failure) -> NoReturn:
        """End this process, and with it the job."""
        if self._client is not None:
            self._client.fail(failure)
        die(failure)

    def _end_stopped_coordinator(self, _: Failure) -> bool:
        """Kill a coordinator that a signal has stopped as this agent ends: it cannot see that it should end too."""
        if self._coordinator is not None and stopped_at(self._coordinator.pid) is not None:
            self._coordinator.kill()
        return False

    def failure(self, cause: Cause, detail: str) -> Failure:
        """A failure of this agent, or of its training process."""
        iteration = None if self._iterations is None else self._iterations.under_way
        phase = Phase.START if self._client is None else None if iteration is None else Phase.EXCHANGE
        node = self._start.node
        return Failure(cause=cause, detail=detail, role="agent", node=node, phase=phase, iteration=iteration)

    def _check_training(self) -> None:
        """Fail where a signal has stopped the training process: the agent's signs of life go on, so all others would wait."""
        now_s = time.monotonic()
        if self._is_leaving or now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        if self._stop.seen(stopped_at(self._training.pid), now_s) > self._settings.silence_s:
            detail = (
                f"has a training process (pid {self._training.pid}) that a signal has stopped: let it go on, or end it"
            )
            self.fail(self.failure(Cause.STOPPED, detail))

    def _training_ended(self, told_by: int | None = None) -> None:
        """told_by: the descriptor that was watched for it."""
        self._unwatch(told_by)
        if not self._is_leaving:
            pid = self._training.pid
            where = "see its output"
            if (ranks := self._start.processes) > 1:
                where = f"any of this machine's {ranks} ranks may have ended first: see the output of all of them"
            detail = f"lost its training process (pid {pid}), which ended without leaving the job: {where}"
            self.fail(self.failure(Cause.ENDED, detail))

    def _leave(self, order: orders.Leave) -> None:
        self._is_leaving = True
        if order.failure is not None:
            self.fail(order.failure)
        if self._iterations is None:
            self._has_left = True
        else:
            self._iterations.take(order)

    def _part(self, client: Client) -> None:
        """All ranks have left."""
        client.close()
        self._links.close()
        if self._coordinator is not None:
            with suppress(BrokenPipeError):
                self._coordinator.communicate(END)
        self._has_left = True


def _keep_freed_memory() -> None:
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # another libc than GNU's
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES[0])
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES[1])


def main() -> int:
    """Run the program."""
    for number in OF_THE_SCRIPT:
        signal.signal(number, signal.SIG_IGN)
    training = Training(socket.socket(fileno=int(sys.argv[1])))
    last_words.hand_to(training.say_last)
    raise_file_limit()
    _keep_freed_memory()
    start = orders.decode_at_agent(training.socket.recv(orders.PACKET_MOST))
    assert isinstance(start, orders.Start), "the first order"
    agent = Agent(training, start)
    try:
        agent.run()
    except Exception as error:
        detail = str(error) if isinstance(error, NalbError) else f"failed: {one_line(error)}"
        agent.fail(agent.failure(Cause.PROCESS, detail))
    return 0


if __name__ == "__main__":
    sys.exit(main())
