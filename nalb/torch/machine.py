"""Several ranks on a machine: they sum among themselves by gloo, the first of them goes out, and hands the sum back.

    rank 0 of the machine    sum of the machine ... sum over machines by the plane ... copy to the others
    all others               sum of the machine ...................................... copy from rank 0

A machine's link then carries its gradients once, and the plane has a node per machine. Two threads of the first rank keep the
order of calls: one sends out, one brings home.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock

import torch
import torch.distributed as dist

from nalb.errors import one_line
from nalb.plane.front import Front
from nalb.torch.gloo import Gloo
from nalb.torch.sums import add_up, in_whole
from nalb.torch.works import SumMissing, SumWork

NewGloo = Callable[[str, int, int], Gloo]  # name in the store, rank, size


def machines_of(hosts: Sequence[tuple[str, bool]]) -> list[list[int]]:
    """The ranks of each machine, in order of their first ranks. hosts: each rank's, and whether it shares that with others."""
    machines: dict[tuple[str, int], list[int]] = {}
    for rank, (host, shares) in enumerate(hosts):
        machines.setdefault((host, -1 if shares else rank), []).append(rank)
    return list(machines.values())


def _is_there(work: dist.Work) -> bool:
    """Whether a sum has come. torch warns of the use of gloo's own `is_success`."""
    if work.is_completed():
        with suppress(Exception):  # why it has failed
            work.get_future().value()
            return True
    return False


class Machine:
    """The ranks of this machine, as one of them sees it."""

    def __init__(self, machines: list[list[int]], rank: int, front: Front | None, new_gloo: NewGloo):
        """front: the first rank's; the others have none."""
        self.number = next(index for index, ranks in enumerate(machines) if rank in ranks)
        self.ranks = ranks = machines[self.number]
        self.sums_begun = 0  # by this rank
        self._front = front
        self._lock = Lock()
        self._begun: list[dist.Work] = []  # sums under way, and those that failed; each keeps its tensors
        self._thrown_out = ""  # by which error, where a call was ended half-way
        place = ranks.index(rank), len(ranks)  # a rank alone is a group of one, in which sums and copies do nothing
        self.sums = new_gloo(f"machine{self.number}/sums", *place)
        self._copies = new_gloo(f"machine{self.number}/copies", *place)
        if front is not None:
            self._out = new_gloo("machines", self.number, len(machines))
            self._outward = ThreadPoolExecutor(1, "nalb-out")
            self._homeward = ThreadPoolExecutor(1, "nalb-home")

    def add_up(self, tensor: torch.Tensor, group: str) -> dist.Work:
        """Begin the sum over all ranks of all machines. group: the name of the group that sums.

        Raises SumMissing after a call that an exception has ended half-way: other ranks would take this sum for that one.
        """
        if self._thrown_out:
            raise SumMissing(f"this rank was thrown out of a sum, which the other ranks wait for: {self._thrown_out}")
        self.sums_begun += 1
        try:
            return in_whole([tensor], lambda whole: self._note(self._begin(whole[0], group)))
        except BaseException as error:
            self._thrown_out = one_line(error)
            if self._front is not None:
                self._front.fail_in_sum(error)
            raise

    def _note(self, work: dist.Work) -> dist.Work:
        begun, lock = self._begun, self._lock
        with lock:
            begun[:] = [one for one in begun if not _is_there(one)]
            begun.append(work)
        if self._front is None:
            return work  # gloo's: Python in a thread of gloo's aborts a process that ends meanwhile

        def forget(_: object) -> None:
            with lock:
                if work.is_success() and work in begun:
                    begun.remove(work)

        work.get_future().add_done_callback(forget)
        return work

    def await_sums(self) -> None:
        """Wait until all sums that have begun are there. Raises the error of one that does not come."""
        for work in list(self._begun):
            work.wait()

    def _begin(self, tensor: torch.Tensor, group: str) -> dist.Work:
        if self._front is None:
            # a clone: the copy may come before gloo is done with the sum here
            self.sums.group.allreduce([tensor.clone()])
            return self._copies.group.broadcast(tensor, 0)
        work = SumWork(tensor)
        at_home = self.sums.begun(self.sums.group.allreduce([tensor]))
        gone = self._outward.submit(self._go_out, self._front, tensor, group, at_home)
        self._homeward.submit(self._come_home, tensor, gone, work)
        return work

    def _go_out(self, front: Front, tensor: torch.Tensor, group: str, at_home: dist.Work) -> dist.Work:
        at_home.wait()
        return add_up(front, tensor, group, lambda: self._out.begun(self._out.group.allreduce([tensor])))

    def _come_home(self, tensor: torch.Tensor, gone: "Future[dist.Work]", work: SumWork) -> None:
        try:
            gone.result().wait()
            self._copies.begun(self._copies.group.broadcast(tensor, 0)).wait()
            work.complete()
        except Exception as error:
            work.complete(error)

    def close(self) -> None:
        """End the threads."""
        if self._front is not None:
            self._outward.shutdown()
            self._homeward.shutdown()
