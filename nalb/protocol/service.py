"""A service: one thing that a job's processes get from the coordinator, such as batch sizes. No sockets, no clock.

The coordinator gives each message to the services that take its kind, sends what they put into `outbox` and tells observers of
what they put into `events`. Services do not know each other: the function that composes a job passes what one needs of another.
"""

from collections import deque
from typing import ClassVar

from nalb.events import AnyEvent
from nalb.failures import Failure, Moment
from nalb.protocol.members import Members
from nalb.protocol.observers import Measured, Outgoing
from nalb.protocol.participant import Process
from nalb.protocol.wire import FromObserver, Message


class Service:
    """Base of every service; its defaults are those of a service that only answers messages.

    A method that returns a Failure ends the job with it; None lets the job go on.
    """

    takes: ClassVar[
        tuple[type[Message], ...]
    ] = ()  # kinds of message from processes; of those that all jobs have, Report
    from_servers: ClassVar[tuple[type[Message], ...]] = ()  # those of `takes` that a server may send too
    sends: ClassVar[tuple[type[Message], ...]] = ()  # kinds of message to processes
    options: ClassVar[tuple[str, ...]] = ()  # fields of JobOptions (nalb/options.py) that the service reads

    def __init__(self, members: Members) -> None:
        self.members = members
        self.outbox: deque[Outgoing] = deque()
        self.events: list[AnyEvent | Measured] = []

    @property
    def phase(self) -> str:
        """The stage of the job, of which observers are told; empty: the service has no stages."""
        return ""

    def send(self, process: Process, message: Message) -> None:
        """Queue a message for one process."""
        self.outbox.append((process.identity, message))

    def begin(self, nodes: list[str], now_s: float) -> Failure | None:
        """All processes are there. nodes: their names in planning order."""
        del nodes, now_s
        return None

    def take(self, process: Process, message: Message, now_s: float) -> Failure | None:
        """A process has sent a message of one of the kinds in `takes`."""
        raise NotImplementedError

    def obey(self, order: FromObserver, now_s: float) -> Failure | None:
        """An observer has asked for something."""
        del order, now_s
        return None

    def tick(self, now_s: float) -> Failure | None:
        """Time has passed; the coordinator calls this at least every heartbeat once all processes are there."""
        del now_s
        return None

    def overslept(self, by_s: float, now_s: float) -> None:
        """See Coordinator.overslept."""
        del by_s, now_s

    def leave(self, process: Process, now_s: float) -> Failure | None:
        """A process has said Goodbye."""
        del process, now_s
        return None

    def moment(self, process: Process | None) -> Moment | None:
        """The phase and iteration of a process, or of the whole job; None where the service does not say."""
        del process
        return None

    def explain(self, failure: Failure, is_own: bool) -> Failure:
        """The failure with what the service knows of it. is_own: the process that failed says so itself."""
        del is_own
        return failure
