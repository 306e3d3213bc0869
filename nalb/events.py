"""The events that a run notes as they happen. Each kind of event is declared here once, for those who write and those who read it.

samples.jsonl has one event per line, as JSON: `event` names the kind, `at_s` is the monotonic clock of the machine that writes the
file, the other fields are the Struct's, in its order. Observers get the same Structs in messages. docs/run-files.md says what each
field means. Readers pass over kinds and fields that they do not know. A field with a default may be missing from a file.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from nalb.failures import Failure, render

ByNode = dict[str, float | None]  # None: not known
Times = dict[str, float]  # seconds by worker's node
Row = tuple[int, int, int, int, int, int]  # source, target, is_push, bytes, start_us, end_us


def _no_times() -> Times:
    """A default that msgspec writes even if it is empty; it leaves out empty dicts that `dict` itself made."""
    return {}


class Event(Struct, frozen=True, kw_only=True, tag_field="event", tag=lambda name: name.removesuffix("Event").lower()):
    """Base of all events."""

    at_s: float  # when, on the monotonic clock of the machine that writes the run's file


class StateEvent(Event, frozen=True, kw_only=True):
    """Tells a new observer alone how far the job is."""

    phase: str
    nodes: list[str]


class MissedEvent(Event, frozen=True, kw_only=True):
    """Tells an observer that read too slowly that events were dropped before this one."""

    events: int  # how many


class ReadyEvent(Event, frozen=True, kw_only=True):
    """All processes of a job have joined."""

    nodes: list[str]  # in the order in which rows of samples number them
    servers: list[str] = []  # the nodes of server ranks 0, 1, ...
    has_agents: bool | UnsetType = (
        UNSET  # whether agents sum gradients, in place of MXNet's servers; former versions left it out
    )
    sites: dict[str, str] | UnsetType = UNSET  # each node's site; left out where sums have one level


class LayoutEvent(Event, frozen=True, kw_only=True):
    """The tensors were cut into slices."""

    model_bytes: int
    slices: int = 0
    probes: int = 0
    slice_bytes: int = 0  # of the largest slice
    iteration: int = 0  # the first that has this layout
    alpha_bytes: float | None = None
    fixed_slice_bytes: float | None = None  # the size of slices in place of the one that alpha gives
    num_probe: int | None = None  # probes per server
    precision: str | UnsetType = UNSET  # in which float32 values travel; UNSET: as they are
    tensors: list[tuple[str, int, str, int]] | None = None  # name, elements, dtype as it travels, group


class IdleEvent(Event, frozen=True, kw_only=True):
    """A held job waits, since no observer asks it for an iteration."""


class PlanEvent(Event, frozen=True, kw_only=True, omit_defaults=True):
    """An iteration begins."""

    iteration: int
    scheme: str
    reason: str | None = None
    shares: ByNode = {}
    predicted_s: float | UnsetType | None = UNSET
    inflight_bytes: int | list[int] | None = None  # that a worker may have under way, by node; 0: no limit
    window_bytes: int | None = None  # what files of former versions call it
    server_of_slice: list[int] | None = None  # for each slice its server's place among `servers` of `ready`

    @property
    def windows(self) -> int | list[int] | None:
        """`inflight_bytes`, whatever its name is in the file."""
        return self.window_bytes if self.inflight_bytes is None else self.inflight_bytes


class SamplesEvent(Event, frozen=True, kw_only=True):
    """The messages of one measured iteration. `at_s` is when the first one started; rows count time from there."""

    iteration: int
    rows: list[Row]


class Rates(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rates in bytes per second."""

    up: ByNode = {}
    down: ByNode = {}
    pairs: list[tuple[str, str, float]] | None = None  # source, target and rate of pairs found to be capped
    uplinks: dict[str, tuple[float | None, float | None]] = {}  # up and down by site
    site_of: dict[str, str] = {}  # each node's site, of `configured` where sums have one level


class Rounded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The precisions of an iteration in which not all float32 values travelled as they are."""

    answers: str  # of all sums
    pushes: dict[str, str] = {}  # by node
    push_parts: dict[str, float] = {}  # by node, bytes pushed for each byte of an answer
    saved_bytes: ByNode = {}  # by node, what its link carries less than with float32, out and in
    whole_bound_s: float | None = (
        None  # the lossless bound of float32, by the rates that the network file gives, else by estimates
    )
    worth_s: ByNode = {}  # by node, how much longer an exchange would take if it alone pushed float32; where they were chosen


class IterationEvent(Event, frozen=True, kw_only=True, omit_defaults=True):
    """All workers are done with an iteration."""

    iteration: int
    scheme: str
    communication_s: Times
    iteration_s: Times = field(default_factory=_no_times)
    plan_wait_s: Times = field(default_factory=_no_times)
    started_s: Times = field(default_factory=_no_times)
    computed_s: Times = field(default_factory=_no_times)
    finished_s: Times = field(default_factory=_no_times)
    samples: int | None = None
    drops: int | None = None
    rejected: dict[str, int] | None = None
    queued_bytes: dict[
        str, int
    ] = {}  # by node: the most that its processes reported to wait on their connections; left out: 0
    resent: dict[str, int] = {}  # by node: packets that TCP sent again; left out: 0
    measured: bool | None = None
    round_trip_s: float | None = None
    slots: int | None = None
    reason: str | None = None
    shares: ByNode = {}
    predicted_s: float | UnsetType | None = UNSET
    load_bytes: ByNode = {}
    estimate: Rates | None = None
    least: Rates | None = None  # lower bounds of `estimate`; a rate that equals its bound is proven
    cores_s: ByNode = {}
    configured: Rates | None = None
    bound_s: float | None = None
    rounded: Rounded | None = None  # None: float32 values travelled as they are
    wan_bound_s: float | None = None  # by sites: how long the uplinks take with the shares of least time
    lan_bound_s: float | None = None  # and how long the slowest LAN takes; the longer one is bound_s
    planned_s: float | None = None
    span_s: float | None = None


class BlockEvent(Event, frozen=True, kw_only=True):
    """A scheme's turn ends."""

    scheme: str
    iterations: int


class NodeChange(Struct, frozen=True):
    """A node's new rates."""

    up_mbps: float | int
    down_mbps: float | int


class LinkChange(Struct, frozen=True):
    """A directed pair's new cap."""

    src: str
    dst: str
    mbps: float | int


class DelayChange(Struct, frozen=True):
    """New delays of one node's or site's link."""

    up_ms: float | int
    down_ms: float | int


class NetworkChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New rates, caps, delays and quotas of the emulated network."""

    at_s: float | int  # the moment that the network file gives
    nodes: dict[str, NodeChange]
    links: list[LinkChange]
    cpu_quotas: dict[str, float | int] = {}  # cores by node
    sites: dict[str, NodeChange] = {}  # by site: of the link that its nodes share
    delays: dict[str, DelayChange] = {}  # by node or site whose traces say delays


class ChangeEvent(Event, frozen=True, kw_only=True):
    """The emulated network changed."""

    elapsed_s: float
    change: NetworkChange | None = None


class BatchEvent(Event, frozen=True, kw_only=True):
    """An iteration's batches were computed. Lists are by worker's rank."""

    workers: list[str]  # nodes
    iteration: int
    batching: str
    sizes: list[int]
    compute_s: list[float]
    period_s: list[float]
    wait_s: list[float]
    cpu_share: list[float]
    memory_share: list[float]
    next_sizes: list[int]
    reason: str
    remove: int | None  # the rank of a worker that the scheme would leave out
    profiles: list[list[tuple[int, float]] | None] | UnsetType = UNSET  # samples and seconds, of the first iteration


class TokenShapeEvent(Event, frozen=True, kw_only=True):
    """The tokens that iterations consist of, from `iteration` on, where workers compute tokens."""

    workers: list[str]  # nodes by rank
    iteration: int  # the first with this shape
    parallel: str
    staleness: int
    total: int
    chunks: int
    weights: list[int]  # by sub-model
    eligible: list[list[int]]  # by sub-model: ranks
    reason: str
    is_apart: bool = False  # workers that compute the last sub-model have no samples of their own
    is_tuned: bool | UnsetType = UNSET  # all cases are measured, and this shape stays; left out while that is not so


class TokenRow(Struct, frozen=True, array_like=True):
    """A token that was computed. Its times are microseconds since the event's `at_s`."""

    level: str  # F1, FB3, B2
    number: int
    worker: int  # rank
    owner: int  # rank; if it is not `worker`, that one helped the owner
    samples: int
    given_us: int
    done_us: int
    fetch_us: int
    compute_us: int
    fetched_bytes: int


class TokensEvent(Event, frozen=True, kw_only=True):
    """All tokens of an iteration are computed; `at_s` is when the iteration began. Lists are by worker's rank."""

    workers: list[str]  # nodes
    iteration: int
    iteration_s: float
    tokens: list[int]
    helped: list[int]
    compute_s: list[float]
    fetch_s: list[float]
    fetched_bytes: list[int]
    rows: list[TokenRow] | UnsetType = UNSET


class DoubtEvent(Event, frozen=True, kw_only=True):
    """A process reported something that cannot be."""

    process: str
    node: str
    reason: str


class SharedUplinkEvent(Event, frozen=True, kw_only=True):
    """Nodes seem to share an uplink that nobody declared (nalb/measurement/shared_uplinks.py). Written once for the same nodes."""

    iteration: int  # the last of the iterations that showed it
    nodes: list[str]
    others: list[str]  # nodes on the other side; the link may as well be theirs
    up_bytes_per_s: float  # from the nodes to the others, in all
    down_bytes_per_s: float  # from the others to the nodes, in all


class AbortEvent(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The coordinator ended the job."""

    reason: str  # for people
    failure: Failure | None = None

    @property
    def words(self) -> str:
        """Why the job ended."""
        return self.reason if self.failure is None else render(self.failure)


class StartedEvent(Event, frozen=True, kw_only=True):
    """The launcher has started a process of a job without a coordinator."""

    role: str
    node: str


class EndedEvent(Event, frozen=True, kw_only=True):
    """A process of a job without a coordinator has ended."""

    role: str
    node: str
    exit_code: int


class FailureEvent(Event, frozen=True, kw_only=True):
    """The launcher saw the job fail: the last event of the run."""

    failure: Failure

    @property
    def words(self) -> str:
        """Why the job failed."""
        return render(self.failure)


AnyEvent = (
    StateEvent
    | MissedEvent
    | ReadyEvent
    | LayoutEvent
    | IdleEvent
    | PlanEvent
    | SamplesEvent
    | IterationEvent
    | BlockEvent
    | ChangeEvent
    | BatchEvent
    | TokenShapeEvent
    | TokensEvent
    | DoubtEvent
    | SharedUplinkEvent
    | AbortEvent
    | StartedEvent
    | EndedEvent
    | FailureEvent
)


def shifted(event: AnyEvent, by_s: float) -> AnyEvent:
    """The event with all its moments `by_s` later: on the clock of a machine that is up so much longer."""
    later = replace(event, at_s=event.at_s + by_s)
    if not isinstance(later, IterationEvent):
        return later

    def moved(moments: Times) -> Times:
        return {node: at_s + by_s for node, at_s in moments.items()}

    return replace(
        later,
        started_s=moved(later.started_s),
        computed_s=moved(later.computed_s),
        finished_s=moved(later.finished_s),
    )


class _Kind(Struct, frozen=True):
    event: Any = None


_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_kind = msgspec.json.Decoder(_Kind)
_KINDS = {one.__struct_config__.tag for one in Event.__subclasses__()}


def encode_line(event: Event) -> bytes:
    """The event as a line of samples.jsonl, which ends with a newline."""
    return msgspec.json.encode(event) + b"\n"


def decode_line(line: bytes) -> AnyEvent | None:
    """The event of a line; None for a kind that is not known.

    Raises msgspec.ValidationError for an event with wrong fields; UnicodeDecodeError, RecursionError and other
    msgspec.DecodeErrors for a line that is no JSON.
    """
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError:
        kind = _kind.decode(line).event
        if isinstance(kind, str) and kind in _KINDS:
            raise
        return None
