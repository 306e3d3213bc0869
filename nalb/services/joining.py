"""All workers must join some services, or none: a worker that does not would let the others wait for ever. No clock, no sockets."""

from dataclasses import dataclass, field

from nalb.errors import listed
from nalb.failures import Cause, Failure
from nalb.protocol.members import Members
from nalb.protocol.participant import Process


@dataclass
class Joining:
    """Who has joined one service. Methods return why the job must end, or None."""

    cause: Cause
    what: str  # what workers join, for people
    advice: str  # what to do if one does not, for people
    is_asked: bool  # the job's options ask for the service
    members: Members
    startup_s: float  # the time that a worker has for joining after the first one
    _joined: set[int] = field(default_factory=set)  # ranks
    _since_s: float = 0.0  # when the first one joined

    def note(self, worker: Process, now_s: float) -> None:
        """A worker joins."""
        if not self._joined:
            self._since_s = now_s
        self._joined.add(worker.rank)

    def check_training(self, worker: Process) -> Failure | None:
        """A worker has made an iteration's calls, or leaves: it trains or has trained, and cannot join any more."""
        if worker.rank in self._joined or not (self._joined or self.is_asked):
            return None
        detail = f"trained without joining {self.what}, which other workers do or an option asks for: {self.advice}"
        return worker.failure(self.cause, detail)

    def check_time(self, now_s: float) -> Failure | None:
        """A worker that still loads data has made no more calls than those that have joined; one that has made more trains."""
        if not self._joined or now_s - self._since_s <= self.startup_s:  # all have reported their calls since
            return None
        joined = [worker for worker in self.members.workers if worker.rank in self._joined]
        others = [worker for worker in self.members.workers if worker.rank not in self._joined]
        training = [worker for worker in others if worker.calls > min(one.calls for one in joined)]
        if not training:
            return None
        names = f"and {listed([worker.name for worker in training[1:]])} " if training[1:] else ""
        return training[0].failure(self.cause, f"{names}did not join {self.what}: {self.advice}")
