"""The control plane's format, and the messages that every job has. Each service adds its own (nalb/services/*/messages.py).

Every message is a frozen, tagged msgspec Struct, and a frame is one MessagePack value. Hello and Welcome carry VERSION; an end
that speaks another version is refused by name. An unknown tag or field is the peer's error. C is the coordinator, P a worker or
server:

    P -> C  Hello       until it is welcomed
    C -> P  Welcome     all processes of the job have said Hello
    P -> C  Report      every heartbeat: samples, and a sign of life
    P -> C  Still       a sign of life on a second connection, which carries nothing else
    C -> P  Alive       the coordinator's sign of life
    P -> C  Goodbye     the process ends in good order
    C -> P  Farewell    every worker has said Goodbye
    P -> C  Failed      the process fails, so the job ends
    C -> P  Abort       the job ends
"""

import math
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from nalb.errors import InputError, PeerError, listed
from nalb.events import AnyEvent
from nalb.failures import Failure
from nalb.options import BATCH_MOST
from nalb.planning.nodes import Capacities, Node
from nalb.planning.sites import Sites, Uplinks
from nalb.settings import NODE_MOST

VERSION = 26
# Round trips, in s: shorter ones fit into queues, longer ones need pacing (measured at 0.05 ms: pacing changes nothing).
FAR_S = 0.005
# A message beyond a bound ends the job. So each bound is out of reach of 1,000 nodes for years, or the sender keeps it too.
FOREVER = 1 << 62  # iterations
ROWS_MOST = 100_000  # of a Report
# Bytes of one frame that the coordinator takes: libzmq stores as much of a handshake for anyone who can connect.
FRAME_MOST = 1 << 24
MESSAGE_MOST = FRAME_MOST - (1 << 16)  # bytes of a message in it, signed and encrypted

Index = Annotated[int, Meta(ge=0, le=1 << 31)]  # a place or a size, which does not grow with the run
Count = Annotated[int, Meta(ge=0, le=FOREVER)]  # the number of things that have happened so far
Last = Annotated[int, Meta(ge=-1, le=FOREVER)]  # the number of the last one, -1 for none
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Cores = Annotated[float, Meta(gt=0.0, le=1e6)]
Name = Annotated[str, Meta(min_length=1, max_length=NODE_MOST)]
Identity = Annotated[str, Meta(min_length=1, max_length=255)]  # ZeroMQ's bound
Job = Annotated[str, Meta(max_length=64)]  # a name that no other job has
BatchSize = Annotated[int, Meta(ge=1, le=BATCH_MOST)]  # samples
Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class Message(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of every message."""


class SampleRow(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """A received message, as its receiver timed it on its own monotonic clock."""

    peer: Annotated[int, Meta(ge=-1, le=1 << 32)]  # the sender: peer_number of its rank; -1: not known
    size_bytes: Annotated[int, Meta(ge=0, le=1 << 40)]
    start_ns: Annotated[int, Meta(ge=0, le=1 << 62)]
    end_ns: Annotated[int, Meta(ge=0, le=1 << 62)]


# ---- from workers and servers


class Hello(Message, frozen=True):
    """The first message of a process, which it repeats until it is welcomed."""

    version: int
    # an agent is worker and server in one
    role: Annotated[str, Meta(pattern=r"^(worker|(site |global )?server|agent)\Z")]
    node: Name
    rank: Index  # among the workers, or among the servers of all levels
    pid: Index


def peer_number(rank: int, is_worker: bool) -> int:
    """The number by which rows name the sender of a message: the worker or the server of this rank."""
    return 2 * rank + is_worker


class Report(Message, frozen=True):
    """The samples since the last report, and how far the process is; without samples a report is a sign of life."""

    sent_s: float  # the process's monotonic clock
    exchanging: Last  # the iteration whose slices are under way
    samples: Annotated[list[SampleRow], Meta(max_length=ROWS_MOST)]
    drops: Count  # samples that were lost so far
    calls: Count = 0  # pushpull and broadcast calls so far, which all workers must make alike
    computed: Last = -1  # the last iteration whose gradients are complete
    queued_bytes: Bytes = 0  # bytes on its connections with other nodes that are not yet sent, acknowledged or read
    round_trip_s: Seconds = 0.0  # to the farthest of these nodes, without queues; 0: not known
    is_bbr: bool = False  # TCP's congestion control is BBR on all connections to far nodes
    cpu_s: Seconds = 0.0  # CPU time of the process so far
    cores: Cores | None = None  # cores that it may use; None: not known
    ready: Count = 0  # calls up to the last one whose arrays are computed; MXNet tells of direct ones (calls.py)
    summed: Count = 0  # likewise, whose sums are back
    resent: Count = 0  # packets that TCP has sent again on its connections with other nodes so far
    by_gloo: Count = 0  # PyTorch's collectives of all ranks that nalb leaves to gloo, so far
    iteration: Last = -1  # of all its samples; -1: not known, as MXNet's messages do not say it
    is_ordered: bool = True  # the order of `calls` and `by_gloo` is alike on all processes that make the same calls


class Still(Message, frozen=True):
    """A process lives, says a second connection, which carries nothing else (client.py)."""

    identity: Identity  # of the first connection


class Goodbye(Message, frozen=True):
    """The process ends in good order."""


class Failed(Message, frozen=True):
    """The process fails; everyone must end."""

    failure: Failure


# ---- from the coordinator


class Levels(Struct, frozen=True, forbid_unknown_fields=True):
    """The sites of a job that sums by sites, and the servers that sum there. Each list has one entry per node in planning order."""

    site: list[Index]
    global_server: list[Index]  # ranks
    site_server: list[Annotated[int, Meta(ge=-1, le=1 << 31)]]  # ranks; -1: none, its machine is alone there


class Welcome(Message, frozen=True):
    """All processes of the job are there."""

    version: int
    job: Job  # for the connections between processes, on which other jobs' processes can come
    nodes: list[Name]  # in planning order
    heartbeat_s: Seconds
    silence_s: Seconds  # an end that gives no sign of life for so long is given up
    num_servers: Index
    levels: Levels | None = None  # None: every worker pushes to every server


class Alive(Message, frozen=True):
    """The coordinator's sign of life."""


class Farewell(Message, frozen=True):
    """Every worker has said Goodbye: only after that may any enter ps-lite's barrier at exit, which knows no names."""


class Abort(Message, frozen=True):
    """The job is over."""

    failure: Failure


# ---- from and to observers: the launcher, compare, a live view


class Observe(Message, frozen=True):
    """The observer asks for every event."""

    version: int


class RunBlock(Message, frozen=True):
    """The next iterations of a held job."""

    scheme: Name
    iterations: Annotated[int, Meta(ge=1, le=FOREVER)]
    alpha_bytes: Annotated[float, Meta(gt=0, le=1e12)] | None = None  # tensors are cut anew by this first
    inflight_bytes: Bytes | None = None  # the window from here on
    slice_bytes: Annotated[float, Meta(gt=0, le=1e12)] | None = None  # in place of what alpha gives
    probes: bool = True  # cut the small slices that measure every link
    forecasts: bool | None = None  # announce and time messages; None: as the scheme needs
    label: Name | None = None  # what events call these iterations; None: the scheme


class Configured(Message, frozen=True):
    """The configured rates in bytes per second, for the oracle and for the bound."""

    up: dict[Name, float]
    down: dict[Name, float]
    pairs: list[tuple[Name, Name, float]]
    site: dict[Name, Name] = {}  # of the nodes that share an uplink
    uplinks: dict[Name, tuple[float, float]] = {}  # of the sites: up, down

    def capacities(self, names: Sequence[str], sites: Sites | None = None) -> Capacities:
        """The rates of the named nodes, in their order. sites: of a job that sums within them first. Raises InputError.

        Sums within sites ignore caps of pairs. On one level each node of a site counts with its part of the uplink.
        """
        index = {name: i for i, name in enumerate(names)}
        if unknown := {*self.site.values()} - {*self.uplinks}:
            raise InputError(f"configured rates: no uplink of {listed(sorted(unknown))}: give one per site")
        spoken_of = [*self.site, *self.up, *self.down, *(end for pair in self.pairs for end in pair[:2])]
        for name in {*spoken_of} ^ {*names} or {*names} - {*self.up} | {*names} - {*self.down}:
            raise InputError(
                f"configured rates: node {name} is not of this job, or has no rates: give one up and one down per node"
            )
        rates = np.array([[way[one] for one in names] for way in (self.up, self.down)])
        if sites is not None:
            return Capacities(rates[0], rates[1], {}, uplinks=self._uplinks(sites))
        pairs = {(index[source], index[target]): rate for source, target, rate in self.pairs}
        if self.site:
            rates = np.minimum(rates, self._uplinks(self._sites(names)).parts())
        return Capacities(rates[0], rates[1], pairs)

    def for_bound(self, nodes: Sequence[Node], pushes_zeros: bool) -> Capacities:
        """The rates for the bound: with uplinks, and without caps of pairs, where these nodes can sum by sites.

        pushes_zeros: as of Sites.
        """
        names = [node.name for node in nodes]
        sites = self._sites(names, pushes_zeros)
        if sites.has_levels and all(node.is_worker and node.is_server for node in nodes):
            return self.capacities(names, sites)
        return self.capacities(names)

    def _sites(self, names: Sequence[str], pushes_zeros: bool = True) -> Sites:
        return Sites(tuple(self.site.get(name, name) for name in names), pushes_zeros)

    def _uplinks(self, sites: Sites) -> Uplinks:
        return Uplinks(sites, *np.array([self.uplinks.get(site, (math.inf, math.inf)) for site in sites.names]).T)


class EndJob(Message, frozen=True):
    """A held job is done."""


class Told(Message, frozen=True):
    """An event, as it happens."""

    event: AnyEvent


FromObserver = Observe | RunBlock | Configured | EndJob
FROM_OBSERVERS: tuple[type[Message], ...] = (Observe, RunBlock, Configured, EndJob)
FROM_PROCESSES: tuple[type[Message], ...] = (Hello, Report, Still, Goodbye, Failed)
TO_PROCESSES: tuple[type[Message], ...] = (Welcome, Alive, Farewell, Abort)
TO_OBSERVERS: tuple[type[Message], ...] = (Told,)

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The frame of a message."""
    return _encoder.encode(message)


class Decoder:
    """Reads the frames of some kinds of message."""

    def __init__(self, kinds: Sequence[type[Message]]):
        union: Any = reduce(or_, kinds)
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)

    def decode(self, frame: bytes, peer: str) -> Message:
        """The message in a frame. Raises PeerError, which names the peer, where it is of none of these kinds."""
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(f"{peer} sent a control message that is not ours (version {VERSION}): {error}") from None
