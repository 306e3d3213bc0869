"""Who takes part in a job: whom the coordinator admits, who falls silent, who has left. What is wrong is returned as a Failure."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator

from nalb.errors import listed
from nalb.failures import Cause, Failure, Moment, Phase
from nalb.protocol import wire
from nalb.protocol.participant import Process, natural_order
from nalb.settings import Settings

LOST_DEADLINES = (
    2  # TCP repeats ever more rarely: after an outage of nearly a deadline the next repetition may take as long
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
        self.rejected: Counter[str] = Counter()  # messages and samples of processes that were not believed, by reason
        self.last_goodbye_s = now_s  # when a process last said Goodbye
        self._expected = settings.num_workers, 0 if settings.is_stock else settings.num_servers

    def __iter__(self) -> Iterator[Process]:
        return iter(self._by_identity.values())

    def get(self, identity: bytes) -> Process | None:
        """The process of this identity, if it has said Hello."""
        return self._by_identity.get(identity)

    def false_name(self, identity: bytes, message: wire.Message, key_node: str) -> Failure | None:
        """Why the sender, which has the key of `key_node`, may not use the name that it uses, if so."""
        known = self.get(identity)
        claimed = message if isinstance(message, wire.Hello) else known.hello if known else None
        if claimed is None or claimed.node == key_node:
            return None
        return Failure(
            cause=Cause.IDENTITY,
            detail=f"node {key_node}, by its key, calls itself {claimed.role} {claimed.node}: give each process its node's own "
            "NALB_NODE and NALB_KEYS",
        )

    # ---- coming

    def admit(self, identity: bytes, hello: wire.Hello, now_s: float) -> Failure | None:
        """Take a process in that has said Hello; return why it cannot take part, if so."""
        process = Process(identity, hello, now_s, now_s)
        if hello.version != wire.VERSION:
            return process.failure(
                Cause.PROTOCOL,
                f"speaks control version {hello.version}, the coordinator {wire.VERSION}: install the same nalb everywhere",
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

    def note_still(self, message: wire.Still, key_node: str | None, now_s: float) -> bool:
        """Take in a sign of life from a second connection, which with keys must be of the process's own node; whether it counts."""
        process = self.get(message.identity.encode())
        if process is None or key_node not in (None, process.hello.node):
            return False
        process.last_heard_s = now_s
        return True

    @property
    def are_all_here(self) -> bool:
        """Whether all processes of the job have said Hello."""
        return (len(self.workers), len(self.servers)) == self._expected

    def missing(self) -> Failure:
        """The failure of a job whose processes have not all come in time; it names those that have."""
        within = f"came within {self._settings.startup_s:g} s (NALB_STARTUP_S)"
        if not self._by_identity:
            return Failure(cause=Cause.ABSENT, detail=f"none of the job's processes {within}: see their logs")
        here = listed(sorted(p.name for p in self))
        expected = max(self._expected) if any(p.is_worker and p.is_server for p in self) else sum(self._expected)
        detail = f"only {len(self._by_identity)} of {expected} processes {within} ({here}): see the others' logs"
        return Failure(cause=Cause.ABSENT, detail=detail)

    def nodes(self) -> list[str]:
        """The nodes' names in planning order, n2 before n10."""
        return sorted({p.hello.node for p in self}, key=natural_order)

    @property
    def round_trip_s(self) -> float:
        """The round trip to the farthest node: the median of what processes report; 0 where none knows it."""
        return statistics.median([p.round_trip_s for p in self if p.round_trip_s] or [0.0])

    @property
    def is_bbr(self) -> bool:
        """Whether all processes with far nodes report BBR as congestion control on these connections."""
        far = [p for p in self if p.round_trip_s >= wire.FAR_S]
        return bool(far) and all(p.is_bbr for p in far)

    def overslept(self, by_s: float, now_s: float) -> None:
        """See Coordinator.overslept."""
        self.last_goodbye_s = min(now_s, self.last_goodbye_s + by_s)
        for process in self:
            process.last_heard_s = min(now_s, process.last_heard_s + by_s)
            process.last_direct_s = min(now_s, process.last_direct_s + by_s)
            process.counted_s = min(now_s, process.counted_s + by_s)

    # ---- going

    def leave(self, process: Process, now_s: float) -> bool:
        """Take in a Goodbye; return whether it is a worker's and every worker has said it."""
        self.last_goodbye_s = now_s
        if process.is_worker and not process.has_left:
            self.left.append(process)
        process.has_left = True
        return process.is_worker and self._have_workers_left

    @property
    def have_left(self) -> bool:
        """Whether everyone has come and said Goodbye."""
        return self.are_all_here and all(process.has_left for process in self)

    @property
    def _have_workers_left(self) -> bool:
        return len(self.left) == len(self.workers)

    def silent(self, moment_of: Callable[[Process], Moment], now_s: float) -> Failure | None:
        """The failure of a process that has been silent for too long, if there is one.

        Workers must give signs of life until all may leave, servers until their Goodbye.
        """
        for process in self:
            silent_s = now_s - process.last_heard_s
            waits = not process.has_left or (process.is_worker and not self._have_workers_left)
            if (direct_s := now_s - process.last_direct_s) > LOST_DEADLINES * self._settings.deadline_s:
                silent_s = direct_s  # it lives and can be reached, but its connection never came back
            if waits and silent_s > self._settings.silence_s:
                return process.failure(
                    Cause.SILENT,
                    f"(pid {process.hello.pid}) has not reported for {silent_s:.1f} s: it is dead, stopped or cut off",
                    *moment_of(process),
                )
        return None

    def lingering(self, now_s: float) -> Failure | None:
        """The failure of a job whose workers have all said Goodbye while ps-lite's last barrier stays shut: nobody else notices."""
        serving = [p for p in self if not p.has_left]
        waited_s = now_s - self.last_goodbye_s
        if serving and not any(p.is_worker for p in serving) and waited_s > self._settings.silence_s:
            return Failure(
                cause=Cause.LINGERING,
                detail=f"every worker left {waited_s:.1f} s ago, in order, but ps-lite has not ended: {serving[0].name} still "
                "serves; the training itself is complete",
                phase=Phase.END,
            )
        return None

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
