"""Every rank's script: sums until something ends it, on rank 1. endings.py HOW

BY_RING=1: not before the group's ring makes the sums, which are larger then: small ones say little of links.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

import torch
import torch.distributed as dist

from nalb.plane import front as fronts
from nalb.torch.backend import current_job
from nalb.torch.gloo import Gloo
from nalb.torch.works import SumWork

LIMIT_S = 60.0
LEARNED = 2  # the step whose first sum completes a pattern that has come twice: from here on iterations have plans

DEVICE = os.environ.get("DEVICE", "cpu")
how, rank = sys.argv[1], int(os.environ["RANK"])
torch.set_num_threads(1)
if ranks_of_a_machine := int(os.environ.get("RANKS_OF_A_MACHINE", "0")):
    os.environ |= {"NALB_NODE": f"m{rank // ranks_of_a_machine}", "LOCAL_WORLD_SIZE": str(ranks_of_a_machine)}
dist.init_process_group("nalb")
other = dist.new_group(backend="gloo") if how == "cut off" else None
groups = [None, dist.new_group()] if how in ("groups in another order", "apart by groups") else [None]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(60, 3000).to(DEVICE))
end_s = time.monotonic() + LIMIT_S
last = None
by_ring, by_plane, has_begun = os.environ.get("BY_RING") == "1", -1, False


def cut(gloo: Gloo) -> None:
    """Shut gloo's connections down, at this end."""
    for one in gloo.connections:
        with socket.socket(fileno=os.dup(one)) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def handle_signals() -> None:
    """Handle each signal that a launcher may send to all processes of this rank, its agent and coordinator too."""
    for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(one, lambda *_: None)
        os.killpg(0, one)


if how == "gloo first":
    fronts.GRACE_S = LIMIT_S  # a busy machine takes long to tell


def exit_before_the_agent_knows() -> None:
    agent = dist.group.WORLD.front.agent.pid
    os.kill(agent, signal.SIGSTOP)
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {agent}"])
    os._exit(9)


class Stopped(Exception):
    """Raised by a handler of signals, in the middle of a sum."""


def stop(*_: object) -> NoReturn:
    raise Stopped


def sum_half_way() -> None:
    """A sum whose first part alone is written."""
    signal.signal(signal.SIGUSR1, stop)
    write = fronts.PlaneSum.write

    def write_part(one: fronts.PlaneSum, _: object) -> None:
        write(one, lambda *_: signal.raise_signal(signal.SIGUSR1))

    fronts.PlaneSum.write = write_part
    with suppress(Stopped):
        dist.all_reduce(torch.ones(3000, device=DEVICE))
    fronts.PlaneSum.write = write


def sum_apart() -> None:
    """A sum by nalb and one by gloo, which rank 1 begins in another order and much later. Nobody waits for either before."""
    under_way = []

    def begin(size: int, group: dist.ProcessGroup | None) -> None:
        under_way.append(dist.all_reduce(torch.ones(size, device=DEVICE), group=group, async_op=True))

    by_nalb, by_gloo = (lambda: begin(3000, None)), (lambda: begin(1, groups[-1]))
    if how == "apart by threads":
        thread = threading.Thread(target=by_gloo)
        by_gloo = lambda: (thread.start(), thread.join())  # noqa: E731
    for number, begin_one in enumerate((by_gloo, by_nalb) if rank else (by_nalb, by_gloo)):
        time.sleep(5.0 * number)
        begin_one()
    for work in under_way:
        work.wait()


def slow_down(front: fronts.Front) -> None:
    """As a busy machine is."""
    place = front.place
    front.place = lambda *args: time.sleep(1.0) or place(*args)


def exit_of_a_framework() -> None:
    try:
        raise ValueError("the data are gone")
    except ValueError:
        sys.exit(1)


def make_a_copy_fail() -> None:
    """As where memory is short; the script goes on."""
    clone = torch.Tensor.clone

    def fail_once(*_: object) -> NoReturn:
        torch.Tensor.clone = clone
        raise MemoryError("no room")

    torch.Tensor.clone = fail_once
    try:
        dist.all_reduce(torch.ones(5000, device=DEVICE))
    except MemoryError as error:
        print("caught", error, flush=True)


def fail() -> None:
    try:
        raise ValueError("the data are gone")
    finally:
        dist.destroy_process_group()


for step in range(1_000_000):
    if time.monotonic() > end_s:
        sys.exit("nothing has ended this")
    if step == last:
        break
    sizes = [300_000, 500_000] if by_ring else [3000, 5000]
    front = dist.group.WORLD.front
    is_time = step >= 10 and not has_begun and (not by_ring or front.by_plane == by_plane)
    by_plane = front.by_plane if front else 0
    if rank == 1 and step == LEARNED and how == "end where learned":
        raise SystemExit(3)  # which is no failure, as far as can be seen
    if rank == 1 and step == LEARNED and how == "other sums where learned":
        sizes = [6000, sizes[1]]
    if is_time:
        has_begun = True
        print("trains", flush=True)
        print("by agents" if front else "by gloo", flush=True)
        if rank == 1 and how == "exception":
            raise ValueError("the data are gone")
        if rank == 1 and how == "finally":
            fail()
        if rank == 1 and how == "exit":
            sys.exit(3)
        if rank == 1 and how == "fewer steps":
            sys.exit(0)
        if rank == 1 and how == "exit unseen":
            raise SystemExit(3)
        if how == "caught":
            if rank == 0:
                dist.recv(torch.zeros(1), 1)
            exit_of_a_framework()
        if rank == 1 and how == "other sums":
            sizes = [sizes[0], 6000]
        if rank == 1 and how == "groups in another order":
            groups.reverse()
        if rank == 1 and how == "fewer sums":
            sizes = sizes[:1]
        if rank == 1 and how.startswith("half-way"):
            sum_half_way()
            if how == "half-way, and no more":
                break
        if (rank, how) in ((1, "gone"), (2, "first of the second machine gone")):
            os._exit(9)
        if rank == 1 and how == "thrown out of a copy":
            make_a_copy_fail()
        if how == "exception beside a barrier":
            if rank == 3:
                raise ValueError("the data are gone")
            dist.barrier()
        if how == "barrier":
            time.sleep(rank * LIMIT_S)
            dist.barrier()  # rank 0 waits in gloo, where no exception reaches it
        if how == "gloo first":
            if rank == 1:
                exit_before_the_agent_knows()
            dist.barrier()
        if how == "cut off" and rank == 0:
            machine = current_job().machine
            gloo = machine.sums if machine else dist.group.WORLD.gloo
            # in place of a collective that misses what follows, as gloo's do now and then
            gloo.begun(SumWork(torch.zeros(1)))
            cut(gloo)
            dist.recv(torch.zeros(1), 1, group=other)
        if how == "cut where idle":
            if rank == 0:
                cut(dist.group.WORLD.gloo)
                time.sleep(3.0)
            last = step + 3
        if how == "signals":
            handle_signals()
            time.sleep(1.0)  # who does not ignore them has ended
            last = step + 3
        if how == "unequal ends":
            if rank == 0:
                dist.barrier()  # where nobody comes to any more
            break
        if how == "not waited for":
            if front:
                slow_down(front)
            under_way = [dist.all_reduce(torch.ones(size, device=DEVICE), async_op=True) for size in sizes]
            if rank >= ranks_of_a_machine:  # another machine's
                for one in under_way:
                    one.wait()
            break
        if how.startswith("apart"):
            sum_apart()
            break
        if rank == 1 and how == "a small sum":
            dist.all_reduce(torch.ones(1, device=DEVICE))
        if how == "end":
            break
    if how == "backward":
        model(torch.ones(60, device=DEVICE)).sum().backward()
        continue
    for size in sizes:
        for group in groups:
            dist.all_reduce(torch.ones(size, device=DEVICE), group=group)
    time.sleep(0.01)
