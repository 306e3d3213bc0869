"""The places where jobs run: loopback, an emulated network, hosts, or one node of several. Each makes a running job of a program,
with one observer.

A venue is a context. All jobs that it has started end with it, and so does what it has made for them: networks, sockets, keys.
`Program` (roles.py) says which processes a job has. Events come from the coordinator's socket where it runs on this machine, and
from a Relay (nalb/transport/observer_relay.py) where it runs on a host, or where there is none.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from nalb.errors import InputError, JobError, MachineError
from nalb.events import AnyEvent, BlockEvent, LayoutEvent, MissedEvent
from nalb.launch.encryption import Encryption, job_keys, keys_here, own_keys_dir
from nalb.launch.hosts import HostsFile
from nalb.launch.network import (
    IN_NAMESPACES,
    NAMESPACE_PORT,
    Changes,
    configured_message,
    inside,
    job_network,
    job_nodes,
    places_in,
)
from nalb.launch.one_node import OneNode
from nalb.launch.ports import free_pair
from nalb.launch.roles import NOTHING, Place, ProcessSpec, Program
from nalb.launch.run_dir import observer_address
from nalb.launch.ssh import RemoteJob
from nalb.launch.supervisor import Job
from nalb.launch.watch import Source, Watch
from nalb.options import JobOptions
from nalb.planning.nodes import Node
from nalb.protocol import wire
from nalb.transport.observer import Observer
from nalb.transport.observer_relay import Relay
from netem.emulation import Emulation
from netem.network import Network

LOOPBACK = "127.0.0.1"
PLAIN = Encryption()
POLL_S = 0.1  # the time between two looks at a job's processes


@dataclass(frozen=True)
class JobOrder:
    """What a venue is asked to run, and how it is shown."""

    program: Program
    options: JobOptions
    run_dir: Path  # for samples.jsonl, logs and the observers' socket
    name: str = ""  # the folder of the logs, and part of the socket's name, where jobs share a run directory
    encryption: Encryption = PLAIN
    show: Callable[[str], None] | None = None  # shows the lines that processes print
    show_unfinished: Callable[[str], None] | None = None  # shows unfinished lines
    may_miss: bool = False  # whether the caller can do without events for which it was too slow
    peer: Callable[[str], Source] | None = None  # serves observers at the address, in place of a coordinator


class RunningJob:
    """A job under way and its events. Where its network changes with time, it follows the changes too."""

    def __init__(
        self, processes: Job, watch: Watch, changes: Changes | None = None, begin: Callable[[], object] = lambda: None
    ):
        """begin: starts the changes."""
        self.processes, self.watch = processes, watch
        self._changes, self._begin = changes, begin

    def follow(self, begins: type[AnyEvent] | None = LayoutEvent) -> Iterator[AnyEvent]:
        """Yield the job's events until it has ended well. Raises JobFailed where it fails.

        The network's changes start after the caller has received the first event of the type `begins`. They also start after missed
        events, since that one may be among those. None: they start at once.
        """
        begun_by: tuple[type[AnyEvent], ...] = () if begins is None else (begins, MissedEvent)
        if not begun_by:
            self._begin()
        while not self.processes.finished():
            for event in self.watch.events(POLL_S):
                yield event
                if isinstance(event, begun_by):
                    begun_by = ()
                    self._begin()
            if self._changes is not None:
                self._changes.tell(self.watch.send)
        yield from self.watch.last_events()

    def block(self, block: wire.RunBlock, look: Callable[[], None] = lambda: None) -> Iterator[AnyEvent]:
        """Order iterations of a held job and yield events until the last is over. `look` is called repeatedly. Raises JobError."""
        self.watch.send(block)
        while not self.processes.finished():
            look()
            for event in self.watch.events(POLL_S):
                yield event
                if isinstance(event, BlockEvent):
                    return
        raise JobError(f"the workers left during scheme {block.label or block.scheme}; see the run's logs")

    def end(self) -> None:
        """End a held job, and wait until it has ended well. Raises JobFailed where it fails."""
        self.watch.send(wire.EndJob())
        self.processes.wait()


class Venue(ABC):
    """A context within which jobs run."""

    is_here = True  # whether the processes are on this machine
    variables = NOTHING  # more variables for all processes

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

    def start(self, order: JobOrder) -> RunningJob:
        """Start a job. Raises MachineError or InputError where it cannot be started."""
        samples, name = order.run_dir / "samples.jsonl", f"observers-{order.name}" if order.name else "observers"
        try:
            samples.touch()  # readers find no event until there is one
        except OSError as error:
            raise MachineError(f"{order.run_dir}: {error.strerror}: choose another --out") from None
        address = observer_address(self.stack, order.run_dir, name)
        specs = self._specs(order, replace(order.options, observers=address, samples_path=str(samples)))
        has_coordinator = any(spec.is_coordinator for spec in specs)
        relay = None if order.peer or (has_coordinator and self.is_here) else Relay(address, samples, len(specs))
        source = relay or (order.peer(address) if order.peer else Observer(address, order.may_miss))
        watch = Watch(self.stack.enter_context(source))
        keys_dir = own_keys_dir(order.encryption, order.run_dir)
        more: dict[str, Any] = {
            "log_dir": order.run_dir / "logs" / order.name,
            "show": order.show,
            "show_unfinished": order.show_unfinished,
            "has_joined": watch.has_joined if has_coordinator and order.program.is_joined(order.options) else None,
            "joining": order.program.joining,
            "with_it": [order.run_dir / name, *([keys_dir] if self.is_here and keys_dir is not None else [])],
        }
        if has_coordinator:
            more |= {"moment": watch.moment} | ({} if self.is_here else {"relay": relay})
        elif relay is not None:
            more["tell"] = relay.tell
        return RunningJob(self.stack.enter_context(self._job(specs, more)), watch)

    def _specs(self, order: JobOrder, options: JobOptions) -> list[ProcessSpec]:
        """The job's processes. options: the order's, with the addresses that a coordinator on this machine needs."""
        keys_dir = keys_here(order.encryption, self.places, order.run_dir, self.stack)
        return order.program.specs(self.places, options, os.environ, keys_dir, self.variables)

    @abstractmethod
    def _job(self, specs: list[ProcessSpec], more: dict[str, Any]) -> Job:
        """The job, not started yet. more: arguments that every Job takes."""


class Loopback(Venue):
    """This machine's loopback: all nodes are processes of this machine. Jobs get free ports."""

    def _specs(self, order: JobOrder, options: JobOptions) -> list[ProcessSpec]:
        port = self.stack.enter_context(free_pair(LOOPBACK))
        return super()._specs(order, replace(options, root_port=port))

    def _job(self, specs: list[ProcessSpec], more: dict[str, Any]) -> Job:
        return Job(specs, lambda spec: list(spec.argv), os.environ, **more)


class Member(Venue):
    """This machine as one node of a job whose other nodes another launcher starts. Node 0 alone sees the job's events."""

    def __init__(self, node: OneNode):
        super().__init__([node.place])
        self._node = node

    def _specs(self, order: JobOrder, options: JobOptions) -> list[ProcessSpec]:
        return self._node.specs(order.program, options, os.environ, order.encryption.keys_dir)

    def _job(self, specs: list[ProcessSpec], more: dict[str, Any]) -> Job:
        return Job(specs, lambda spec: list(spec.argv), os.environ, is_whole=False, **more)


class Emulated(Venue):
    """An emulated network, which entering the context sets up. Jobs with root ports of their own share it."""

    emulation: Emulation
    variables = IN_NAMESPACES

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
        job = super().start(order)
        nodes = {place.name for place in self.places}
        job.watch.send(configured_message(self._network, 0.0, nodes))
        changes = Changes(self._network, order.run_dir, nodes)
        return RunningJob(
            job.processes, job.watch, changes, lambda: self.stack.enter_context(changes.start(self.emulation))
        )

    def _specs(self, order: JobOrder, options: JobOptions) -> list[ProcessSpec]:
        return super()._specs(order, replace(options, root_port=options.root_port or NAMESPACE_PORT))

    def _job(self, specs: list[ProcessSpec], more: dict[str, Any]) -> Job:
        more |= {"check": self.emulation.check, "are_paced": self.emulation.stops_processes}
        return Job(specs, inside(self.emulation), os.environ, **more)


def hosts_specs(
    program: Program, hosts: HostsFile, places: Sequence[Place], options: JobOptions, keys_dir: str | None
) -> list[ProcessSpec]:
    """The processes of a job on hosts; each also gets the file's variables. Raises InputError for one that nalb sets otherwise."""
    told = dict(hosts.environment)
    specs = program.specs(places, options, told, keys_dir, NOTHING)
    for spec in specs:
        for name in told.keys() & spec.environment.keys():
            if told[name] != spec.environment[name]:
                raise InputError(
                    f"hosts file: defaults.environment.{name}: nalb sets this variable, for {spec.name} to "
                    f"{spec.environment[name]!r}: leave it out; options of a job have flags"
                )
    return [replace(spec, environment=told | spec.environment) for spec in specs]


class Hosts(Venue):
    """The hosts of a file, each entered by ssh."""

    is_here = False

    def __init__(self, hosts: HostsFile, places: Sequence[Place]):
        """places: those of the file on which the job runs."""
        super().__init__(places)
        self._hosts = hosts

    def _specs(self, order: JobOrder, options: JobOptions) -> list[ProcessSpec]:
        options = replace(options, root_port=self._hosts.root_port, observers=None, samples_path=None)
        self._keys = job_keys(order.encryption, self.places) if order.encryption.is_on else {}
        return hosts_specs(order.program, self._hosts, self.places, options, None)

    def _job(self, specs: list[ProcessSpec], more: dict[str, Any]) -> Job:
        return RemoteJob(specs, self._hosts, self._keys, **more)


@dataclass(frozen=True)
class Where:
    """Where jobs are to run: on loopback, in an emulated network, on hosts, or as one node of a job. One of them is given."""

    local: tuple[int, ...] | None = None  # the number of nodes of each site, on this machine's loopback
    network: Network | None = None
    hosts: HostsFile | None = None
    one_node: OneNode | None = None  # this machine's part in a job whose other nodes another launcher starts

    @property
    def name(self) -> str:
        """The place in words: a node's or network's name, loopback or hosts."""
        if self.one_node is not None:
            return self.one_node.place.name
        return self.network.name if self.network else "hosts" if self.hosts else "loopback"

    def nodes(self) -> Sequence[Place | Node]:
        """The nodes of a job, with their names and roles."""
        if self.one_node is not None:
            return [self.one_node.place]
        return (
            self.hosts.places() if self.hosts else job_nodes(self.network) if self.network else self.loopback_places()
        )

    def loopback_places(self, is_encrypted: bool = False) -> list[Place]:
        """The places on loopback. With keys each node has an address of its own: the whole of 127.0.0.0/8 is this machine."""
        sites = [f"site{k}" for k, count in enumerate(self.local or ()) for _ in range(count)]
        return [
            Place(f"n{i}", f"127.0.0.{i + 1}" if is_encrypted else LOOPBACK, site=site) for i, site in enumerate(sites)
        ]

    def venue(self, is_encrypted: bool, without: Sequence[str] = ()) -> Venue:
        """A venue there. without: nodes on which nothing runs."""
        if self.network is not None:
            return Emulated(self.network, without)
        if self.one_node is not None:
            return Member(self.one_node)
        places = self.hosts.places() if self.hosts else self.loopback_places(is_encrypted)
        left = [place for place in places if place.name not in without]
        return Hosts(self.hosts, left) if self.hosts else Loopback(left)
