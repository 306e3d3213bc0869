"""The places where jobs run: loopback, an emulated network, or hosts. Each turns a program into a running job with one observer.

A venue is a context. All jobs that it has started end with it, and so does what it has made for them: networks, sockets, keys.
`Program` (roles.py) says which processes a job has. Events come from the coordinator's socket where it runs on this machine, and
from a Relay (nalb/transport/observer_relay.py) where it runs on a host, or where there is none.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from nalb.errors import MachineError
from nalb.events import AnyEvent, LayoutEvent, MissedEvent
from nalb.launch.encryption import Encryption, job_keys, keys_here
from nalb.launch.hosts import HostsFile
from nalb.launch.network import NAMESPACE_PORT, Changes, configured_message, inside, job_network, places_in
from nalb.launch.ports import free_pair
from nalb.launch.roles import NOTHING, Place, ProcessSpec, Program
from nalb.launch.run_dir import observer_address
from nalb.launch.ssh import RemoteJob
from nalb.launch.supervisor import Job, Wrap
from nalb.launch.watch import Source, Watch
from nalb.options import JobOptions
from nalb.protocol import messages as m
from nalb.transport.observer import Observer
from nalb.transport.observer_relay import Relay
from netem.emulation import Emulation
from netem.network_file import Network

LOOPBACK = "127.0.0.1"
POLL_S = 0.1  # the time between two looks at a job's processes

Show = Callable[[str], None]


@dataclass(frozen=True)
class JobOrder:
    """What a venue is asked to run, and how it is shown."""

    program: Program
    options: JobOptions
    run_dir: Path  # for samples.jsonl, logs and the observers' socket
    name: str = ""  # the folder of the logs, and part of the socket's name, where jobs share a run directory
    encryption: Encryption = field(default_factory=Encryption)
    show: Show | None = None  # shows the lines that processes print
    show_unfinished: Show | None = None  # shows unfinished lines
    may_miss: bool = False  # whether the caller can do without events for which it was too slow
    peer: Callable[[str], Source] | None = (
        None  # makes what serves observers in place of a coordinator, from the address
    )

    @property
    def logs(self) -> Path:
        """The directory of the job's logs."""
        return self.run_dir / "logs" / self.name

    @property
    def socket(self) -> str:
        """The name of the observers' socket in the run directory."""
        return f"observers-{self.name}" if self.name else "observers"

    @property
    def samples(self) -> Path:
        """The job's file of events."""
        return self.run_dir / "samples.jsonl"


class RunningJob:
    """A job under way and its events. Where its network changes with time, it follows the changes too."""

    def __init__(
        self, job: Job, watch: Watch, changes: Changes | None = None, begin: Callable[[], object] = lambda: None
    ):
        """begin: starts the changes."""
        self.job, self.watch = job, watch
        self._changes, self._begin = changes, begin

    def follow(self, begins: type[AnyEvent] | None = LayoutEvent) -> Iterator[AnyEvent]:
        """Yield the job's events until it has ended well. Raises JobFailed where it fails.

        The network's changes start after the caller has received the first event of the type `begins`. They also start after missed
        events, since that one may be among those. None: they start at once.
        """
        begun_by: tuple[type[AnyEvent], ...] = () if begins is None else (begins, MissedEvent)
        if not begun_by:
            self._begin()
        while not self.job.finished():
            for event in self.watch.events(POLL_S):
                yield event
                if isinstance(event, begun_by):
                    begun_by = ()
                    self._begin()
            if self._changes is not None:
                self._changes.tell(self.watch.send)
        yield from self.watch.last_events()

    def end(self) -> None:
        """End a held job, and wait until it has ended well. Raises JobFailed where it fails."""
        self.watch.send(m.EndJob())
        self.job.wait()


class Venue(ABC):
    """A context within which jobs run."""

    def __init__(self, places: Sequence[Place]):
        """places: the nodes of each job."""
        self.places = list(places)
        self.stack = ExitStack()  # of all that the venue has started and made

    def __enter__(self) -> "Venue":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.__exit__(kind, error, trace)

    @abstractmethod
    def start(self, order: JobOrder) -> RunningJob:
        """Start a job. Raises MachineError or InputError where it cannot be started."""


class Loopback(Venue):
    """This machine's loopback: all nodes are processes of this machine. Jobs get free ports."""

    def start(self, order: JobOrder) -> RunningJob:
        """Start a job. Raises MachineError or InputError where it cannot be started."""
        port = self.stack.enter_context(free_pair(LOOPBACK))
        return RunningJob(*_started_here(self, order, port, lambda spec: list(spec.argv)))


class Emulated(Venue):
    """An emulated network, which entering the context sets up. Jobs with root ports of their own share it."""

    emulation: Emulation

    def __init__(self, network: Network, without: Sequence[str] = ()):
        """without: nodes of the network on which nothing runs."""
        super().__init__(())
        self._network, self._without = network, without

    def __enter__(self) -> "Emulated":
        self.emulation = self.stack.enter_context(job_network(self._network))
        self.places = [place for place in places_in(self.emulation) if place.name not in self._without]
        return self

    def start(self, order: JobOrder) -> RunningJob:
        """Start a job and tell its coordinator the network's rates. Raises MachineError or InputError where it cannot start."""
        port = order.options.root_port or NAMESPACE_PORT
        job, watch = _started_here(self, order, port, inside(self.emulation), self.emulation.check)
        nodes = {place.name for place in self.places}
        watch.send(configured_message(self._network, 0.0, nodes))
        changes = Changes(self._network, order.run_dir, nodes)
        return RunningJob(job, watch, changes, lambda: self.stack.enter_context(changes.start(self.emulation)))


class Hosts(Venue):
    """The hosts of a file, each entered by ssh."""

    def __init__(self, hosts: HostsFile, places: Sequence[Place]):
        """places: those of the file on which the job runs."""
        super().__init__(places)
        self._hosts = hosts

    def start(self, order: JobOrder) -> RunningJob:
        """Start a job. Raises MachineError or InputError where it cannot be started."""
        options = replace(order.options, root_port=self._hosts.root_port)
        keys = job_keys(order.encryption, self.places) if order.encryption.is_on else {}
        specs = order.program.specs(self.places, options, {}, None, dict(self._hosts.environment))
        address = observer_address(self.stack, order.run_dir, order.socket)
        relay = self.stack.enter_context(Relay(address, order.samples, len(specs)))
        watch = Watch(relay)
        more = _watched(order, options, specs, watch, relay)
        return RunningJob(
            self.stack.enter_context(RemoteJob(specs, self._hosts, keys, order.logs, relay, **more)), watch
        )


def _started_here(
    venue: Venue, order: JobOrder, port: int, wrap: Wrap, check: Callable[[], None] = lambda: None
) -> tuple[Job, Watch]:
    """Start a job on this machine."""
    address = observer_address(venue.stack, order.run_dir, order.socket)
    options = replace(order.options, root_port=port, observers=address, samples_path=str(order.samples))
    keys_dir = keys_here(order.encryption, venue.places, order.run_dir, venue.stack)
    specs = order.program.specs(venue.places, options, os.environ, keys_dir, NOTHING)
    if order.program.is_joined(options):
        try:
            order.samples.touch()  # whoever reads it finds no event until the coordinator is there
        except OSError as error:
            raise MachineError(f"{order.run_dir}: {error.strerror}: choose another --out") from None
    relay: Relay | None = None
    source: Source
    if order.peer is not None:
        source = order.peer(address)
    elif any(spec.is_coordinator for spec in specs):
        source = Observer(address, order.may_miss)
    else:
        source = relay = Relay(address, order.samples, len(specs))
    watch = Watch(venue.stack.enter_context(source))
    more = _watched(order, options, specs, watch, relay)
    job = Job(specs, wrap, os.environ, order.logs, check=check, **more)
    return venue.stack.enter_context(job), watch


def _watched(
    order: JobOrder, options: JobOptions, specs: Sequence[ProcessSpec], watch: Watch, relay: Relay | None
) -> dict[str, Any]:
    """The arguments by which a Job shows its output, learns of its state, and tells of itself where no coordinator does."""
    has_coordinator = any(spec.is_coordinator for spec in specs)
    more: dict[str, Any] = {"show": order.show, "show_unfinished": order.show_unfinished}
    if order.program.is_joined(options):
        more["has_joined"] = watch.has_joined
    if has_coordinator:
        more["moment"] = watch.moment
    elif relay is not None:
        more["tell"] = relay.tell
    return more
