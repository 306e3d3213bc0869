"""Who takes part in a job: whom the coordinator admits, who falls silent, who has left. What is wrong is returned as a Failure."""

import statistics
from collections.abc import Iterator

import numpy as np

from nalb.errors import listed
from nalb.failures import Cause, Failure, Phase
from nalb.measurement.cores import Work
from nalb.protocol import messages as m
from nalb.protocol.participant import Process, moment, natural_order
from nalb.settings import Settings

LOST_DEADLINES = (
    2  # TCP repeats ever more rarely: up to a silence after an outage of nearly as long, it may be about to
)


class Members:
    """The processes that have said Hello, in that order."""

    def __init__(self, settings: Settings, now_s: float):
        self._settings = settings
        self._by_identity: dict[bytes, Process] = {}
        self.workers: list[Process] = []
        self.worker_of_rank: dict[int, Process] = {}
        self.servers: list[Process] = []
        self.left: list[Process] = []  # workers that have said Goodbye
        self._last_goodbye_s = now_s
        self._expected = settings.num_workers, 0 if settings.is_stock else settings.num_servers

    def __iter__(self) -> Iterator[Process]:
        return iter(self._by_identity.values())

    def get(self, identity: bytes) -> Process | None:
        """Who has this identity, if he has said Hello."""
        return self._by_identity.get(identity)

    def false_name(self, identity: bytes, message: m.FromNode | m.FromObserver, key_node: str) -> Failure | None:
        """Why the sender, whose key is `key_node`'s, may not speak as it does, if so."""
        known = self.get(identity)
        claimed = message if isinstance(message, m.Hello) else known.hello if known else None
        if claimed is None or claimed.node == key_node:
            return None
        return Failure(
            cause=Cause.IDENTITY,
            detail=f"node {key_node}, by its key, calls itself {claimed.role} {claimed.node}: give each process its node's own "
            "NALB_NODE and NALB_KEYS",
        )

    # ---- coming

    def admit(self, identity: bytes, hello: m.Hello, now_s: float) -> Failure | None:
        """Take it in; why it cannot take part, if so."""
        process = Process(identity, hello, now_s, now_s)
        if hello.version != m.VERSION:
            return process.failure(
                Cause.PROTOCOL,
                f"speaks control version {hello.version}, the coordinator {m.VERSION}: install the same nalb everywhere",
            )
        if hello.rank >= (self._settings.num_workers if process.is_worker else self._settings.num_servers):
            return process.failure(
                Cause.IDENTITY,
                f"has rank {hello.rank}, which no {hello.role} of this job can have: start it with the "
                "environment that `nalb launch --print-env` shows",
            )
        if any(not {*p.peer_numbers}.isdisjoint(process.peer_numbers) or p.name == process.name for p in self):
            return process.failure(
                Cause.IDENTITY,
                f"has the name or the rank {hello.rank} of another process: give each node its own NALB_NODE",
            )
        self._by_identity[identity] = process
        if process.is_worker:
            self.workers.append(process)
            self.worker_of_rank[process.rank] = process
        if process.is_server:
            self.servers.append(process)
        return None

    def note_still(self, message: m.Still, key_node: str | None, now_s: float) -> None:
        """A process lives, says a second connection; with keys, one of its own node."""
        process = self.get(message.identity.encode())
        if process is not None and key_node in (None, process.hello.node):
            process.last_heard_s = now_s

    @property
    def are_all_here(self) -> bool:
        """Whether everyone has come."""
        return (len(self.workers), len(self.servers)) == self._expected

    def missing(self) -> Failure:
        """Who has come in time, where some have not."""
        here = listed(sorted(p.name for p in self)) or "nobody"
        expected = max(self._expected) if any(p.is_worker and p.is_server for p in self) else sum(self._expected)
        return Failure(
            cause=Cause.ABSENT,
            detail=f"only {len(self._by_identity)} of {expected} processes came within "
            f"{self._settings.startup_s:g} s ({here}): see the others' logs",
        )

    def nodes(self) -> list[str]:
        """Names, n2 before n10."""
        return sorted({p.hello.node for p in self}, key=natural_order)

    @property
    def round_trip_s(self) -> float:
        """To the farthest node, as most say; 0 where nobody knows."""
        return statistics.median([p.round_trip_s for p in self if p.round_trip_s] or [0.0])

    @property
    def is_bbr(self) -> bool:
        """Whether BBR finds the rates of all connections to nodes that are far."""
        far = [p for p in self if p.round_trip_s >= m.FAR_S]
        return bool(far) and all(p.is_bbr for p in far)

    def work(self, nodes: list[str]) -> Work:
        """What the iteration took of these nodes' CPUs; all of the job's, each once."""
        place = {name: i for i, name in enumerate(nodes)}
        worker_s, server_s, cores = np.zeros(len(place)), np.zeros(len(place)), np.full(len(place), np.inf)
        for process in self:
            i, told = place[process.hello.node], process.cores
            cores[i] = np.nan if told is None else min(cores[i], told)
        for worker in self.workers:
            known_s = worker.done.cpu_s if worker.done else None
            worker_s[place[worker.hello.node]] = np.nan if known_s is None else known_s
        for server in self.servers:
            if server.is_worker:
                continue  # it told all of its CPU time as a worker
            server_s[place[server.hello.node]] += server.cpu_s - server.cpu_before_s  # one of each level
        return Work(worker_s, server_s, cores)

    # ---- going

    def leave(self, process: Process, now_s: float) -> bool:
        """It has said Goodbye; whether every worker has now."""
        self._last_goodbye_s = now_s
        if process.is_worker and process.left_after is None:
            self.left.append(process)
        process.left_after = process.finished
        return process.is_worker and self._have_workers_left

    @property
    def have_left(self) -> bool:
        """Whether everyone has come and said Goodbye."""
        return self.are_all_here and all(process.left_after is not None for process in self)

    @property
    def _have_workers_left(self) -> bool:
        return len(self.left) == len(self.workers)

    def silent(self, phase: str, iteration: int, now_s: float) -> Failure | None:
        """Who has been silent for too long, if anyone; workers until all may leave, servers until their Goodbye."""
        for process in self:
            silent_s = now_s - process.last_heard_s
            waits = process.left_after is None or (process.is_worker and not self._have_workers_left)
            if (direct_s := now_s - process.last_direct_s) > LOST_DEADLINES * self._settings.deadline_s:
                silent_s = direct_s  # it lives and can be reached, but its connection never came back
            if waits and silent_s > self._settings.silence_s:
                return process.failure(
                    Cause.SILENT,
                    f"(pid {process.hello.pid}) has not reported for {silent_s:.1f} s: it is dead, stopped or cut off",
                    *moment(process, phase, iteration),
                )
        return None

    def lingering(self, now_s: float) -> Failure | None:
        """All workers have said Goodbye but ps-lite's last barrier never opens: nobody else would notice."""
        serving = [p for p in self if p.left_after is None]
        waited_s = now_s - self._last_goodbye_s
        if serving and not any(p.is_worker for p in serving) and waited_s > self._settings.silence_s:
            return Failure(
                cause=Cause.LINGERING,
                detail=f"every worker left {waited_s:.1f} s ago, in order, but ps-lite has not ended: {serving[0].name} still "
                "serves; the training itself is complete",
                phase=Phase.END,
            )
        return None

    def exchanging(self, iteration: int) -> list[Process]:
        """The workers that lack sums of this iteration; none while gradients of it are still being computed."""
        waiting = [worker for worker in self.workers if worker.finished < iteration]
        is_all_computed = all(worker.computed >= iteration and worker.exchanging == iteration for worker in waiting)
        return waiting if is_all_computed else []

    def stuck(
        self, waiting: list[Process], since_s: float, phase: Phase | None = None, iteration: int | None = None
    ) -> Failure | None:
        """Why sums that workers wait for will never come, if so: all report, and nothing is under way between any nodes.

        since_s: when something last was, or when the last array to be summed was computed. A connection that was reset does that:
        ps-lite sends nothing twice. A slow link is never without something under way, and one that is lost neither
        (nalb/transport/reachability.py).
        """
        # a process's state is unknown after its last direct message
        idle_s = min(process.last_direct_s for process in self) - since_s
        if not waiting or idle_s <= self._settings.silence_s:
            return None
        names = listed([worker.name for worker in waiting])
        return Failure(
            cause=Cause.STUCK,
            detail=f"{names}: sums are missing, but nothing has been under way between any nodes for {idle_s:.1f} s, although "
            "all report: a connection between two of them was lost with what it carried",
            phase=phase,
            iteration=iteration,
        )
