"""A front end of the plane without a framework: each rank sums arrays of numpy. Tests run several in one process."""

import mmap
import os
import socket
import subprocess
import threading
import time
from collections import deque
from itertools import pairwise

import numpy as np

from nalb.plane import orders
from nalb.planning.slices import sum_dtype
from nalb.process.own_program import own_argv
from nalb.services.exchange.messages import Finish, TensorSpec

LIMIT_S = 60.0  # of any wait: a busy machine starts processes slowly


class PlainFront:
    """One rank's agent and the socket to it."""

    made: list = []  # noqa: RUF012 - all that the process has made, to be closed

    def __init__(self, rank, size, environment=None, starts_coordinator=None, address="127.0.0.1", wrap=()):
        self.rank, self.size = rank, size
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(LIMIT_S)
        with theirs:
            argv = [*wrap, *own_argv("nalb.plane.agent", str(theirs.fileno()))]
            self.agent = subprocess.Popen(argv, pass_fds=(theirs.fileno(),), env={**os.environ, **(environment or {})})
        starts = rank == 0 if starts_coordinator is None else starts_coordinator
        self.send(orders.Start(rank, size, f"n{rank}", address, starts))
        self.registrations = self.calls = 0
        self.early = deque()
        self.tensors = None
        self.made.append(self)

    def close(self):
        """Close what this process has of the front."""
        self.socket.close()
        self.agent.wait(LIMIT_S)

    def send(self, order, descriptor=None):
        if descriptor is None:
            self.socket.send(orders.encode(order))
        else:
            socket.send_fds(self.socket, [orders.encode(order)], [descriptor])

    def hear(self, kind):
        """The next order of this kind; others wait. An Ended is raised."""
        for order in self.early:
            if isinstance(order, kind):
                self.early.remove(order)
                return order
        while True:
            packet = self.socket.recv(orders.PACKET_MOST)
            if not packet:
                raise EOFError
            order = orders.decode_at_training(packet)
            if isinstance(order, kind):
                return order
            if isinstance(order, orders.Ended):
                raise Ended(order.failure)
            self.early.append(order)

    def register(self, sizes, *dtypes):
        """Iterations consist of these tensors from now on. dtypes: of all, or one for each; in memory they are alike."""
        self.dtypes = list(dtypes or ["float32"]) * (len(sizes) if len(dtypes) < 2 else 1)
        specs = [TensorSpec(str(index), *one, index) for index, one in enumerate(zip(sizes, self.dtypes, strict=True))]
        (dtype,) = {sum_dtype(one) for one in self.dtypes}
        self.send(orders.TensorList(specs, True, 0))
        self.registrations += 1
        descriptor = os.memfd_create("test")
        size_bytes = max(sum(sizes) * np.dtype(dtype).itemsize, 1)
        os.ftruncate(descriptor, size_bytes)
        whole = np.frombuffer(mmap.mmap(descriptor, size_bytes), dtype, sum(sizes))
        self.send(orders.Segment(size_bytes), descriptor)
        os.close(descriptor)
        ends = np.cumsum([0, *sizes])
        self.tensors = [whole[start:stop] for start, stop in pairwise(ends)]
        self.offsets = [int(end) * whole.itemsize for end in ends]

    def route(self):
        """The next iteration's route."""
        while True:
            route = self.hear(orders.Route | Finish)
            if isinstance(route, Finish) or route.registration == self.registrations - 1:
                return route

    def begin(self, tensors=None, waited_s=0.0):
        """Hand all tensors to the agent. waited_s: what the script waited for the plan, which has just come."""
        planned_s = time.monotonic()
        for index in range(len(self.tensors) if tensors is None else tensors):
            self.calls += 1
            self.sum(index, planned_s - waited_s, planned_s)
            elements = len(self.tensors[index])
            if elements > 10:
                self.send(orders.Ready(index, elements // 2))
            self.send(orders.Ready(index, elements))

    def sum(self, index, asked_s=0.0, planned_s=0.0):
        """Ask for the sum of a tensor that is not ready yet."""
        self.send(orders.Sum(index, self.offsets[index], self.calls, asked_s, planned_s))

    def wait(self, tensors=None):
        """Wait for the sums."""
        left = {index: len(one) for index, one in enumerate(self.tensors) if tensors is None or index < tensors}
        while left:
            summed = self.hear(orders.Summed)
            if summed.elements == left[summed.tensor]:
                del left[summed.tensor]

    def leave(self):
        self.send(orders.Leave())


class Ended(Exception):
    """The agent has said why it ends."""

    def __init__(self, failure):
        super().__init__(failure.detail)
        self.failure = failure


def meet(fronts, order=None):
    """Let all agents join the job; returns where they listen. order: in which ranks are asked whether they have joined."""
    listening = [front.hear(orders.Listening) for front in fronts]
    for front in fronts:
        front.send(orders.Peers([one.address for one in listening], listening[0].coordinator))
    for rank in order or range(len(fronts)):
        fronts[rank].hear(orders.AllJoined)
    return listening


def on_all(fronts, act):
    """Call `act(front)` for all at the same time; returns what it returns, or raises what the first of them raised."""
    results = [None] * len(fronts)

    def run(place):
        try:
            results[place] = act(fronts[place])
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(fronts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
