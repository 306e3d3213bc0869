"""`python -m netem.duty_cycle NETWORK NODE...`: CPU quotas by SIGSTOP and SIGCONT, where no cgroup can be written.

Every TICK_S the controller adds up the CPU time that each node's processes have used, by the kernel's clock of each process. If
a node has used more than its quota, the controller stops all its processes until enough time has passed. So a quota limits CPU
time, however many threads there are, but in coarser pieces than a cgroup does. A node's processes are those in its network
namespace. The controller looks for them every SCAN_S, and does not see a process that lives shorter. It holds processes by
descriptors, so a signal never reaches a later process of the same id.

The controller runs in the hub's namespace, so removing the network kills it. It listens on an abstract socket that only that
namespace sees. Requests and answers are JSON lines. A request sets quotas: {node: cores or null}. The answer has all quotas, and
how often each node was stopped: {"quotas": {...}, "times_stopped": {...}}.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from nalb.errors import MachineError
from nalb.process import daemon, kernel_calls
from netem import namespaces
from netem.schedule import CpuQuotas

SOCKET = "\0nalb-cpu-quotas"
TICK_S = 0.01
SCAN_S = 0.1
SAVED_S = 0.02  # an idle node saves this much time's worth of quota, as in a cgroup's period
ANSWER_DEADLINE_S = 10.0
# A node stands no longer than this, even if a process used more before it was found: a silent node would be taken for dead.
LONGEST_STAND_S = 0.5
CPUCLOCK_SCHED = 2  # linux/posix-timers.h: the CPU time of a whole process, (~pid << 3) | 2


def cpu_time_s(pid: int) -> float:
    """CPU seconds used by all threads of a process. Raises OSError if the process is gone."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def budget_after(budget_s: float, quota: float, elapsed_s: float, used_s: float) -> float:
    """The CPU seconds that a node may use, after elapsed_s in which it used used_s.

    A node earns its quota with time, and saves at most SAVED_S's worth of it. Below 0 the node must stand. The debt is limited, so
    that the node stands for LONGEST_STAND_S at most.
    """
    return max(min(budget_s + quota * elapsed_s, quota * SAVED_S) - used_s, -quota * LONGEST_STAND_S)


@dataclass
class Held:
    """A process of a node."""

    descriptor: int  # of the process
    used_s: float  # its CPU time when last looked at

    def signal(self, number: int) -> None:
        """Send the process a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            kernel_calls.send_signal(self.descriptor, number)


@dataclass
class Brake:
    """A node's quota, the CPU time that it may use, and its processes."""

    namespace: str
    quota: float | None = None
    budget_s: float = 0.0
    stands: bool = False
    times_stopped: int = 0
    processes: dict[int, Held] = field(default_factory=dict)

    def scan(self, inside: list[int]) -> None:
        """Take up the new processes of `inside`, and drop those that are not in it."""
        for pid in [pid for pid in self.processes if pid not in inside]:
            os.close(self.processes.pop(pid).descriptor)
        for pid in inside:
            if pid in self.processes:
                continue
            with suppress(OSError):
                held = Held(kernel_calls.open_process(pid), 0.0)
                if namespaces.identity_of_process(pid) != namespaces.identity(self.namespace):
                    os.close(held.descriptor)  # it ended, and another took its id
                    continue
                self.processes[pid] = held
                if self.stands:
                    held.signal(signal.SIGSTOP)

    def tick(self, elapsed_s: float) -> None:
        """Charge the CPU time that was used, and stop the processes or let them go on."""
        used_s = 0.0
        for pid, held in self.processes.items():
            with suppress(OSError):
                now_s = cpu_time_s(pid)
                used_s, held.used_s = used_s + now_s - held.used_s, now_s
        if self.quota is None:
            self.budget_s, must_stand = 0.0, False
        else:
            self.budget_s = budget_after(self.budget_s, self.quota, elapsed_s, used_s)
            must_stand = self.budget_s < 0
        if must_stand != self.stands:
            self.stands = must_stand
            self.times_stopped += must_stand
            for held in self.processes.values():
                held.signal(signal.SIGSTOP if must_stand else signal.SIGCONT)


def serve(server: socket.socket, brakes: Mapping[str, Brake]) -> None:
    """Look for processes, charge their CPU time and answer requests, for ever."""
    last_s = scanned_s = time.monotonic()
    while True:
        if select.select([server], [], [], TICK_S)[0]:
            _answer(server, brakes)
        now_s = time.monotonic()
        if now_s - scanned_s >= SCAN_S:
            scanned_s = now_s
            inside = namespaces.processes_by_namespace([brake.namespace for brake in brakes.values()])
            for brake in brakes.values():
                brake.scan(inside[brake.namespace])
        for brake in brakes.values():
            brake.tick(now_s - last_s)
        last_s = now_s


def set_quotas(hub: str, quotas: CpuQuotas) -> dict[str, int]:
    """Set quotas in the hub's controller; return how often each node was stopped. Raises MachineError.

    The nodes that `quotas` leaves out keep theirs.
    """
    try:
        with namespaces.inside(hub, lambda: socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(ANSWER_DEADLINE_S)
            connection.connect(SOCKET)
            connection.sendall(json.dumps(quotas).encode() + b"\n")
            with connection.makefile("rb") as answer:
                found = json.loads(answer.readline())
    except (OSError, ValueError) as error:
        raise MachineError(
            f"the duty cycle of {hub} does not answer ({error}): run `nalb net down` and start again"
        ) from error
    if any(found["quotas"][name] != quota for name, quota in quotas.items()):
        raise MachineError(f"the duty cycle of {hub} keeps {found['quotas']} where {quotas} was set: report this")
    return dict(found["times_stopped"])


def _answer(server: socket.socket, brakes: Mapping[str, Brake]) -> None:
    with suppress(OSError, ValueError), server.accept()[0] as connection:
        connection.settimeout(1.0)
        with connection.makefile("rb") as request:
            for name, quota in json.loads(request.readline()).items():
                brakes[name].quota = quota
        answer = {
            "quotas": {name: brake.quota for name, brake in brakes.items()},
            "times_stopped": {name: brake.times_stopped for name, brake in brakes.items()},
        }
        connection.sendall(json.dumps(answer).encode() + b"\n")


def main(argv: list[str]) -> int:
    """Listen on the socket, go to the background, and hold the nodes to their quotas."""
    network_name, *names = argv
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(SOCKET)
        server.listen()
        daemon.detach("ready")
        with suppress(PermissionError):
            os.nice(-10)  # a late controller lets a node use too much, and must then stop it for long
        serve(server, {name: Brake(namespaces.node_namespace(network_name, name)) for name in names})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
