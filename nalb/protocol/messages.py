"""The control plane's words. Every message is a frozen, tagged msgspec Struct; a frame is one MessagePack value.

VERSION stands in Hello and Welcome: another version is refused by name. Unknown tags and fields are the peer's error.
The order of one iteration k (C coordinator, W worker, S server):

    W -> C  Sums(k-1)          only where sums are verified
    W -> C  Done(k-1)          all slices of k-1 are back
    C -> S  Collect(k-1)       all workers are done; only where k-1 was measured
    S -> C  Collected(k-1)     its samples are reported
    W,S -> C Report            samples, and the sign of life, every heartbeat
    C -> W  PrepareSlots(k)    only where plan k needs slots that the worker's own node's server does not have yet
    W -> C  SlotsReady(k)      every worker that was asked
    C -> W  Plan(k)            no worker communicates iteration k before this; as soon as k-1 begins where that cannot change it

A plan that MXNet's own routing takes the place of may hold for several iterations, k to k+n. A worker asks nobody in between, and
tells of them with its next sign of life: Done(k), ..., Done(k+n) come together. The plan after it goes out when k begins.

A call that no plan covers, as a broadcast and the first sums, is agreed on first (calls.py); calls are counted from 0:

    W -> C  Called(k)          the worker would make call k; it pushes nothing yet
    C -> W  CallAgreed(k)      every worker has announced the same call

Batch sizes have a count of iterations of their own, since a job may balance them without plans:

    W -> C  JoinBatching
    C -> W  BatchSizes(k)      no worker draws batch k before this
    W -> C  Computed(k)        the gradients of batch k are there

Tokens (nalb/tokens) have one too:

    W -> C  JoinTokens
    C -> W  TokenPeers         every worker has joined
    W -> C  TokenRequest(k)    once per token and once per iteration; the worker then waits for TokenWork or NextIteration
    C -> W  TokenShape(k)      before NextIteration(k-1) and any token of k, where it is not that of k-1
    C -> W  TokenWork(k)       answers the request
    C -> W  SendPart(k)        to whoever holds what the token needs
    C -> W  SumGradients(k)    to every worker, in the same order
    C -> W  NextIteration(k)   answers the request
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from nalb.errors import InputError, PeerError, listed
from nalb.events import AnyEvent
from nalb.failures import Failure
from nalb.options import BATCH_MOST
from nalb.planning.nodes import Capacities, Node
from nalb.planning.sites import Sites, Uplinks
from nalb.planning.slices import PRECISIONS
from nalb.settings import NODE_MOST
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Fetch
from nalb.tokens.shape import SUB_MODELS_MOST

VERSION = 18
# Round trips, in s: shorter ones fit into queues, longer ones need pacing (measured at 0.05 ms: pacing changes nothing).
FAR_S = 0.005
# A message beyond a bound ends the job. So either 1,000 nodes cannot reach the bound in years, or the sender keeps it too.
FOREVER = 1 << 62  # iterations
NAME_MOST = 256  # characters of a tensor's name
ROWS_MOST = 100_000  # of a Report
POWER_MOST = 1e30
FRAME_MOST = (
    1 << 24
)  # bytes that the coordinator takes of one frame: libzmq keeps so much of a handshake of anyone who can connect
MESSAGE_MOST = FRAME_MOST - (1 << 16)  # bytes of a message in it, signed and encrypted

Index = Annotated[int, Meta(ge=0, le=1 << 31)]  # a place or a size: it does not grow with the run
Count = Annotated[int, Meta(ge=0, le=FOREVER)]  # of what has happened so far
Last = Annotated[int, Meta(ge=-1, le=FOREVER)]  # the number of the last one, -1 for none
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Cores = Annotated[float, Meta(gt=0.0, le=1e6)]
Name = Annotated[str, Meta(min_length=1, max_length=NODE_MOST)]
Identity = Annotated[str, Meta(min_length=1, max_length=255)]  # ZeroMQ's bound
BatchSize = Annotated[int, Meta(ge=1, le=BATCH_MOST)]
Positive = Annotated[float, Meta(gt=0.0, le=1e9)]  # seconds
Power = Annotated[float, Meta(gt=0.0, le=POWER_MOST)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
KeyName = Annotated[str, Meta(max_length=NAME_MOST)]
Dtype = Annotated[str, Meta(pattern=r"^float(16|32|64)\Z")]
Precision = Annotated[str, Meta(pattern=rf"^({'|'.join(PRECISIONS)})\Z")]  # as what float32 values travel
CallKind = Literal["sum", "broadcast", "single sum"]


class Message(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of every message."""


class TensorSpec(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A tensor of the exchange, in the order in which all workers push."""

    name: KeyName
    elements: Index
    dtype: Dtype
    group: Index  # tensors pushed by one call may share slices; those of different calls may not


class SampleRow(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """A received message, as its receiver timed it on its own monotonic clock."""

    peer: Annotated[int, Meta(ge=-1, le=1 << 32)]  # who sent it: peer_number of its rank; -1: not known
    size_bytes: Annotated[int, Meta(ge=0, le=1 << 40)]
    start_ns: Annotated[int, Meta(ge=0, le=1 << 62)]
    end_ns: Annotated[int, Meta(ge=0, le=1 << 62)]


# ---- from workers and servers


class Hello(Message, frozen=True):
    """First word of a process, and again until it is welcomed."""

    version: int
    role: Annotated[
        str, Meta(pattern=r"^(worker|(site |global )?server|agent)\Z")
    ]  # an agent is worker and server in one
    node: Name
    rank: Index  # among the workers, or among the servers of all levels
    pid: Index


def peer_number(rank: int, is_worker: bool) -> int:
    """How rows name the sender of a message: the worker or the server of this rank."""
    return 2 * rank + is_worker


class Register(Message, frozen=True):
    """What a worker pushes each iteration; all workers must say the same."""

    tensors: Annotated[list[TensorSpec], Meta(min_length=1, max_length=1_000_000)]
    number: Count = 0  # counts the worker's registrations, so that a repeated one is known
    precision: Precision = "float32"  # that the worker was told


class Report(Message, frozen=True):
    """Samples since the last report; empty ones are the sign of life."""

    sent_s: float  # the process's monotonic clock
    exchanging: Last  # the iteration whose slices are under way
    samples: Annotated[list[SampleRow], Meta(max_length=ROWS_MOST)]
    drops: Count
    calls: Count = 0  # of pushpull and broadcast so far: what all workers must make alike
    computed: Last = -1  # the last iteration whose gradients are complete
    queued_bytes: Bytes = 0  # on its connections with other nodes, not yet sent, acknowledged or read
    round_trip_s: Seconds = 0.0  # to the farthest of them, without queues; 0: not known
    is_bbr: bool = False  # TCP's congestion control is BBR to all that are far
    cpu_s: Seconds = 0.0  # CPU time of the process so far
    cores: Cores | None = None  # that it may use; None: not known
    ready: Count = 0  # calls up to the last direct one (calls.py) whose arrays are computed
    summed: Count = 0  # calls up to the last direct one whose sums are back


class Called(Message, frozen=True):
    """A worker would make a call that no plan covers; it waits for CallAgreed."""

    number: Count  # calls that it has made before, as Report.calls counts them
    kind: CallKind
    keys: Annotated[list[KeyName], Meta(min_length=1, max_length=8)]  # the first, for people
    key_count: Index
    elements: Annotated[int, Meta(ge=0, le=1 << 62)]  # of all keys
    dtypes: Annotated[list[Dtype], Meta(min_length=1, max_length=8)]
    digest: Name  # of all keys, elements and dtypes in order


class Still(Message, frozen=True):
    """I live: on a second connection, which carries nothing else (client.py)."""

    identity: Identity  # of the first


class SlotsReady(Message, frozen=True):
    """The slots asked for in PrepareSlots exist."""

    iteration: Count
    layout_version: Count


class Done(Message, frozen=True):
    """A worker has every slice of the iteration back."""

    iteration: Count
    communication_s: Seconds  # first push to last pull
    iteration_s: Seconds  # since the last iteration's end
    plan_wait_s: Seconds  # spent waiting for the plan
    started_s: float  # first push, on the worker's monotonic clock
    finished_s: float  # last pull, likewise
    computed_s: float | None = None  # its gradients were complete, likewise; None: not known
    cpu_s: Seconds | None = None  # CPU time of its process from then on; None: not known


class Collected(Message, frozen=True):
    """A server has reported all that it received in the iteration."""

    iteration: Count


class SliceSum(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """What sums.py takes of a slice."""

    plain: float  # sum of its elements
    signed: float  # the same with signs by lot
    magnitude: float  # sum of their magnitudes


class Sums(Message, frozen=True):
    """Before Done, where sums are verified: of every slice, as the worker pushed it and as it came back."""

    iteration: Count
    sent: Annotated[list[SliceSum], Meta(max_length=1_000_000)]
    received: Annotated[list[SliceSum], Meta(max_length=1_000_000)]


class JoinBatching(Message, frozen=True):
    """The worker's batches may be sized by the coordinator; all workers must say so, or none."""

    batch_size: BatchSize  # to begin with, where the job does not say
    most: BatchSize | None  # what the worker can hold; None: no bound
    profile: Annotated[list[tuple[BatchSize, Positive]], Meta(max_length=64)] | None = None  # (samples, seconds) timed
    power: Power | None = None  # of this machine, in any one unit, e.g. its cores; None: not known


class Computed(Message, frozen=True):
    """A worker has all gradients of its batch."""

    iteration: Count  # counted from JoinBatching
    batch_size: BatchSize
    compute_s: Positive  # from the batch, or the last parameter, to the last gradient
    cpu_share: Share  # of the CPU time of the worker's cores that it got while computing
    memory_share: Share  # of the machine's memory in use
    period_s: Seconds  # from the batch before to this one; 0 for the first
    wait_s: Seconds  # spent waiting for this batch's size


class JoinTokens(Message, frozen=True):
    """The worker computes tokens; all workers must say so with the same numbers."""

    address: Identity  # tcp://host:port, where other workers' couriers reach this one's
    sub_models: Annotated[int, Meta(ge=1, le=SUB_MODELS_MOST)]
    total: BatchSize  # samples of an iteration, over all workers
    threshold: BatchSize  # the smallest batch at which the first sub-model computes at full speed


class TokenRequest(Message, frozen=True):
    """A worker in `iteration` has computed `done` and asks for its next token."""

    iteration: Count
    done: TokenId | None = None
    drains: bool = False  # its training ends: it stays until the iteration is complete
    compute_s: Seconds = 0.0  # of `done`, from its inputs to its output
    fetch_s: Seconds = 0.0  # from the token until its inputs were there
    fetched_bytes: Bytes = 0


class Goodbye(Message, frozen=True):
    """The process ends in good order."""


class Failed(Message, frozen=True):
    """The process fails; everyone must end."""

    failure: Failure


# ---- from the coordinator


class Levels(Struct, frozen=True, forbid_unknown_fields=True):
    """Of a job by sites, per node in planning order: its site, and who sums there."""

    site: list[Index]
    global_server: list[Index]  # ranks
    site_server: list[Annotated[int, Meta(ge=-1, le=1 << 31)]]  # ranks; -1: none, its machine is alone there


class Welcome(Message, frozen=True):
    """All processes of the job are there."""

    version: int
    nodes: list[Name]  # in planning order
    heartbeat_s: Seconds
    silence_s: Seconds  # without a sign of life the other end is given up
    num_servers: Index
    levels: Levels | None = None  # None: every worker pushes to every server


class Setup(Message, frozen=True):
    """How every worker must cut its tensors; the digest says whether the results agree."""

    registration: Count  # the Register whose tensors these are
    layout_version: Count  # grows with every cut
    num_nodes: Index
    num_servers: Index
    alpha_bytes: Annotated[float, Meta(gt=0)]
    fixed_slice_bytes: Annotated[float, Meta(gt=0)] | None  # in place of what alpha gives
    num_probe: Index  # per server
    digest: Name
    iteration: Count  # of its first plan; the others follow one by one
    precision: Precision = "float32"


class CallAgreed(Message, frozen=True):
    """All workers have announced the same call."""

    number: Count


class NewSlots(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Slots of one size on one server, numbered from `first`."""

    server: Index  # rank
    first: Index
    count: Index
    elements: Index
    dtype: Name


class PrepareSlots(Message, frozen=True):
    """Make these slots exist before anyone uses them."""

    iteration: Count
    # With the iteration it names the order: a new registration may ask again for the same iteration.
    layout_version: Count
    slots: list[NewSlots]


class SiteLeaders(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Who sums each slice within one site; nothing for a site of one machine."""

    server_of_slice: list[Index]  # ranks of site servers, whose nodes' workers lead
    slot_of_slice: list[Index]  # numbers of their slots, two keys each (nalb/planning/slots.py)


class Plan(Message, frozen=True):
    """Where each slice of some iterations goes."""

    iteration: Count  # from this one
    until: Count  # to this one, both included
    layout_version: Count  # of the registration whose slices these are
    scheme: Name
    measure: bool  # forecasts on
    inflight_bytes: Bytes  # a slice leaves when what lies this far before it is back; 0: no limit
    server_of_slice: list[Index]  # server ranks
    slot_of_slice: list[Index]  # slot numbers on that server
    leaders: list[SiteLeaders] = []  # of each site, in a job by sites; servers are then global ones

    @property
    def routes_itself(self) -> bool:
        """Whether MXNet routes this iteration: nothing is planned."""
        return not self.server_of_slice


class BatchSizes(Message, frozen=True):
    """How many samples every worker computes."""

    iteration: Count  # from this one
    until: Count  # to this one, both included
    sizes: Annotated[list[BatchSize], Meta(min_length=1, max_length=100_000)]  # by worker rank


class TokenPeers(Message, frozen=True):
    """All workers have joined: where each one's courier is."""

    addresses: list[Identity]  # by rank


class TokenShape(Message, frozen=True):
    """What iterations consist of, from `iteration` on (nalb/tokens/shape.py, policies.py)."""

    iteration: Count
    chunks: Index
    weights: list[Index]  # by sub-model
    eligible: list[list[Index]]  # by sub-model: ranks that may compute it


class TokenWork(Message, frozen=True):
    """Compute this token, once its fetches have come."""

    token: TokenId
    chunks: list[Index]  # whose samples it covers, in the order of its batch
    inputs: list[TokenId]
    mirrors: TokenId | None
    fetches: list[Fetch]


class SendPart(Message, frozen=True):
    """Send what `fetch` says to the courier of `worker`, which computes `wanted_by`."""

    fetch: Fetch
    worker: Index
    wanted_by: TokenId
    chunks: list[Index]  # of wanted_by: of a gradient that covers more, only these samples' part is wanted


class SumGradients(Message, frozen=True):
    """All gradients of a sub-model are there: sum them over `workers`, and take the step."""

    iteration: Count
    sub_model: Index
    workers: list[Index]
    shares: list[Share]  # of the elements that each of them adds up, where they are some of the workers; 1 in all


class NextIteration(Message, frozen=True):
    """The worker's iteration ends. Nobody needs what iterations up to `complete` left any more."""

    iteration: Count
    complete: Last


class Measure(Message, frozen=True):
    """To servers: send forecasts or not, as the plan says."""

    on: bool


class Collect(Message, frozen=True):
    """To servers: every worker is done; report what is not reported yet."""

    iteration: Count


class Alive(Message, frozen=True):
    """The coordinator's sign of life."""


class Farewell(Message, frozen=True):
    """Every worker has said Goodbye: only now may any enter ps-lite's barrier at exit, which knows no names."""


class Finish(Message, frozen=True):
    """No further iteration will be planned: replay workers end here."""


class Abort(Message, frozen=True):
    """The job is over."""

    failure: Failure


# ---- observers: the launcher, compare, a live view


class Observe(Message, frozen=True):
    """Send me every event."""

    version: int


class RunBlock(Message, frozen=True):
    """A held job's next iterations."""

    scheme: Name
    iterations: Annotated[int, Meta(ge=1, le=FOREVER)]
    alpha_bytes: Annotated[float, Meta(gt=0, le=1e12)] | None = None  # cut anew first
    inflight_bytes: Bytes | None = None  # from here on
    slice_bytes: Annotated[float, Meta(gt=0, le=1e12)] | None = None  # in place of what alpha gives
    probes: bool = True  # cut the small slices that measure every link
    forecasts: bool | None = None  # announce and time messages; None: as the scheme needs
    label: Name | None = None  # what events call these iterations; None: the scheme
    precision: Precision | None = None  # None: the job's


class Configured(Message, frozen=True):
    """The configured rates, for the oracle and for the bound; bytes per second."""

    up: dict[Name, float]
    down: dict[Name, float]
    pairs: list[tuple[Name, Name, float]]
    site: dict[Name, Name] = {}  # of the nodes that share an uplink
    uplinks: dict[Name, tuple[float, float]] = {}  # of the sites: up, down

    def capacities(self, names: Sequence[str], sites: Sites | None = None) -> Capacities:
        """The same for the nodes named, in their order. sites: of a job that sums within them first. Raises InputError.

        On one level each node of a site counts with its part of the uplink.
        """
        index = {name: i for i, name in enumerate(names)}
        if unknown := {*self.site.values()} - {*self.uplinks}:
            raise InputError(f"configured rates: no uplink of {listed(sorted(unknown))}: give one per site")
        spoken_of = [*self.site, *self.up, *self.down, *(end for pair in self.pairs for end in pair[:2])]
        for name in {*spoken_of} ^ {*names} or {*names} - {*self.up} | {*names} - {*self.down}:
            raise InputError(
                f"configured rates: node {name} is not of this job, or has no rates: give one up and one down per node"
            )
        pairs = {(index[source], index[target]): rate for source, target, rate in self.pairs}
        rates = np.array([[way[one] for one in names] for way in (self.up, self.down)])
        if sites is not None:
            return Capacities(rates[0], rates[1], pairs, uplinks=self._uplinks(sites))
        if self.site:
            rates = np.minimum(rates, self._uplinks(self._sites(names)).parts())
        return Capacities(rates[0], rates[1], pairs)

    def for_bound(self, nodes: Sequence[Node]) -> Capacities:
        """The same for the bound: of a job that sums by sites where these nodes can. Caps of pairs do not count there."""
        names = [node.name for node in nodes]
        sites = self._sites(names)
        if sites.has_levels and all(node.is_worker and node.is_server for node in nodes):
            return replace(self, pairs=[]).capacities(names, sites)
        return self.capacities(names)

    def _sites(self, names: Sequence[str]) -> Sites:
        return Sites(tuple(self.site.get(name, name) for name in names))

    def _uplinks(self, sites: Sites) -> Uplinks:
        return Uplinks(sites, *np.array([self.uplinks.get(site, (math.inf, math.inf)) for site in sites.names]).T)


class EndJob(Message, frozen=True):
    """A held job is done."""


class Told(Message, frozen=True):
    """What observers are told as it happens."""

    event: AnyEvent


FromNode = (
    Hello
    | Register
    | Report
    | Called
    | Still
    | SlotsReady
    | Done
    | Collected
    | Sums
    | JoinBatching
    | Computed
    | JoinTokens
    | TokenRequest
    | Goodbye
    | Failed
)
FromCoordinator = (
    Welcome
    | Setup
    | CallAgreed
    | PrepareSlots
    | Plan
    | BatchSizes
    | TokenPeers
    | TokenShape
    | TokenWork
    | SendPart
    | SumGradients
    | NextIteration
    | Measure
    | Collect
    | Alive
    | Farewell
    | Finish
    | Abort
    | Told
)
FromObserver = Observe | RunBlock | Configured | EndJob

_encoder = msgspec.msgpack.Encoder()
_to_coordinator: msgspec.msgpack.Decoder[FromNode | FromObserver] = msgspec.msgpack.Decoder(FromNode | FromObserver)
_to_client: msgspec.msgpack.Decoder[FromCoordinator] = msgspec.msgpack.Decoder(FromCoordinator)


def encode(message: Message) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def require_fit(message: Register | Sums) -> None:
    """Raises InputError for more tensors or slices than one message holds; of all kinds, only these grow with the model."""
    if (size_bytes := len(encode(message))) > MESSAGE_MOST:
        what, advice = (
            (f"{len(message.tensors)} tensors", "push fewer or larger ones, or give them shorter names")
            if isinstance(message, Register)
            else (f"sums of {len(message.sent)} slices", "leave out --verify-sums")
        )
        raise InputError(f"{what} take {size_bytes} bytes to tell, where {MESSAGE_MOST} can be told: {advice}")


def decode_at_coordinator(frame: bytes, peer: str) -> FromNode | FromObserver:
    """A frame from a node or observer; PeerError names the peer where it is not one of our messages."""
    try:
        return _to_coordinator.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"{peer} sent a control message that is not ours (version {VERSION}): {error}") from None


def decode_at_client(frame: bytes) -> FromCoordinator:
    """A frame from the coordinator."""
    try:
        return _to_client.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(
            f"the coordinator sent a control message that is not ours (version {VERSION}): {error}"
        ) from None
