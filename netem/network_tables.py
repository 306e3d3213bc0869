"""The tables of a network file: their fields with their limits. Network, in network.py, holds them together.

The types hold the limits of each field, and `__post_init__` checks a table's fields against each other.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from netem.traces import Trace

LOW_MBPS = 0.01  # below this one packet takes more than a second
HIGH_MBPS = 34_000.0  # tc's byte rates are 32-bit: 2^32 bytes/s is 34,359 Mbit/s
HIGH_TIME_S = 1e7  # about four months: longer is a typing mistake
HIGH_QUEUE_MS = 10_000.0
# Delay and jitter together. ARP gives up after 3 tries, 1 s apart, and between two such nodes its answer takes four delays.
HIGH_DELAY_MS = 700.0
HIGH_LOSS_PERCENT = 99.0  # a node that reaches nobody is in no network
DEFAULT_QUEUE_MS = 50.0
LOW_CPU_QUOTA = 0.01  # Python alone takes seconds to start with less; the kernel's own limit is 0.001
HIGH_CPU_QUOTA = 1024.0  # more cores than machines have
HIGH_MEMORY_MB = 4e6  # more than machines have


def _number(low: float, high: float, unit: str) -> Meta:
    return Meta(ge=low, le=high, description=f"a number from {low:g} to {high:g} {unit}")


# The pattern ends with \Z, since a newline may follow $. Linux allows 15 characters in an interface's name.
Name = Annotated[
    str,
    Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,14}\Z", description="1 to 15 of a-z, 0-9 and '-', not starting with '-'"),
]
NodeName = Annotated[str, Meta(description="the name of a node of this file")]
SiteName = Annotated[str, Meta(description="the name of a site of this file")]
Mbps = Annotated[float, _number(LOW_MBPS, HIGH_MBPS, "Mbit/s")]
QueueMs = Annotated[float, _number(1, HIGH_QUEUE_MS, "ms")]
DelayMs = Annotated[float, _number(0, HIGH_DELAY_MS, "ms")]
Percent = Annotated[float, _number(0, 100, "percent")]
LossPercent = Annotated[float, _number(0, HIGH_LOSS_PERCENT, "percent")]
Cores = Annotated[float, _number(LOW_CPU_QUOTA, HIGH_CPU_QUOTA, "cores")]
MemoryMb = Annotated[float, _number(0, HIGH_MEMORY_MB, "MB")]
Flag = Annotated[bool, Meta(description="true or false")]
Seed = Annotated[int, Meta(ge=0, description="a whole number of 0 or more")]
EveryS = Annotated[float, _number(0.1, HIGH_TIME_S, "s")]
TraceFile = Annotated[Trace, Meta(description="the path of a trace file")]
CongestionControl = Annotated[Literal["cubic", "reno", "bbr"], Meta(description="'cubic', 'reno' or 'bbr'")]
TraceEnd = Annotated[Literal["loop", "hold"], Meta(description="'loop' or 'hold'")]
AtS = Annotated[
    float, _number(0.001, HIGH_TIME_S, "s (what holds from the start stands in [[nodes]], [[sites]] and [[links]])")
]


class Access(Struct, frozen=True, forbid_unknown_fields=True):
    """The access link of a node or of a site."""

    up_mbps: Mbps | None = None  # what may be sent, Mbit/s with headers; None: drawn by [random] or traced
    down_mbps: Mbps | None = None  # what may be received, likewise
    queue_ms: QueueMs = DEFAULT_QUEUE_MS  # how long a packet may wait in a full queue, each direction
    delay_ms: DelayMs = 0.0  # added to each packet, each direction
    jitter_ms: DelayMs = 0.0  # spread of the delay
    loss_percent: LossPercent = 0.0  # packets dropped at random, each direction
    reorder_percent: Percent = 0.0  # packets that are not delayed, and so overtake others, each direction
    up_trace: TraceFile | None = None  # the trace that the uplink's rate follows
    down_trace: TraceFile | None = None  # the trace that the downlink's rate follows
    trace_end: TraceEnd = "loop"  # what comes after a trace's last line

    @property
    def traces(self) -> tuple[Trace | None, Trace | None]:
        """The traces of the way up and of the way down."""
        return self.up_trace, self.down_trace

    @property
    def highest_delay_ms(self) -> float:
        """The longest delay of a packet at any time, with its jitter."""
        steps = [step for trace in self.traces if trace is not None for step in trace.steps]
        return self.jitter_ms + max([self.delay_ms, *(step.delay_ms for step in steps if step.delay_ms is not None)])


class Defaults(Access, frozen=True):
    """The fields that [defaults] may give for all nodes, and each of [[nodes]] for itself."""

    cpu_quota: Cores | None = None  # cores that its processes may use together; None: all, or drawn by [cpu_random]
    memory_mb: MemoryMb = 0.0  # memory that a competing process holds there, MB (10^6 bytes)
    is_worker: Flag = field(name="worker", default=True)  # whether a job runs a worker here; netem makes no difference
    is_server: Flag = field(name="server", default=True)  # whether a job runs a server here


class NetworkNode(Defaults, frozen=True, kw_only=True):
    """One machine and its access link."""

    name: Name  # also part of its namespace's name
    site: SiteName | None = None  # the site behind whose uplink it is; None: its link goes to the core

    def __post_init__(self) -> None:
        _check_delay(self)
        if not (self.is_worker or self.is_server):
            raise ValueError(f"worker and server are both false: give '{self.name}' a role or remove it")


class Site(Access, frozen=True, kw_only=True):
    """Several machines on a LAN, behind one link to the core that they share."""

    name: Name  # also part of its namespace's name; no node has it

    def __post_init__(self) -> None:
        _check_delay(self)


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """A cap on one directed pair, below the rates of its two ends, and the pair's own delay and loss."""

    src: NodeName  # sending node
    dst: NodeName  # receiving node
    mbps: Mbps  # cap of src -> dst
    delay_ms: DelayMs = 0.0  # added to src's own delay
    jitter_ms: DelayMs = 0.0  # added to src's own jitter
    loss_percent: Percent = 0.0  # on top of src's own loss
    reorder_percent: Percent = 0.0  # on top of src's own reordering

    def __post_init__(self) -> None:
        _check_delay(self)
        if self.src == self.dst:
            raise ValueError(f"dst is '{self.dst}', the same as src: give two different nodes")


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """New rates of one node or site, or a new cap of one declared link, from a moment on."""

    at_s: AtS  # seconds after the start
    node: NodeName | None = None  # the node that changes, or None
    src: NodeName | None = None  # the pair that changes, or None
    dst: NodeName | None = None
    up_mbps: Mbps | None = None  # the node's or site's new uplink; None keeps it
    down_mbps: Mbps | None = None  # the node's or site's new downlink; None keeps it
    mbps: Mbps | None = None  # the pair's new cap
    site: SiteName | None = None  # the site that changes, or None

    def __post_init__(self) -> None:
        rates, of_pair = (self.up_mbps, self.down_mbps), (self.src, self.dst, self.mbps)
        if self.node is not None and self.site is not None:
            raise ValueError("site is given beside node: keep one of the two, and make two changes for both")
        if self.access is None and (None in of_pair or rates != (None, None)):
            raise ValueError(
                "node is missing: give node or site with up_mbps, down_mbps or both, or src, dst and mbps alone"
            )
        if self.access is not None and (rates == (None, None) or of_pair != (None, None, None)):
            place = "site" if self.node is None else "node"
            raise ValueError(f"{place} is given: give up_mbps, down_mbps or both with it, and no src, dst or mbps")

    @property
    def access(self) -> str | None:
        """The node or site whose access link changes, or None; no site has a node's name."""
        return self.site if self.node is None else self.node

    @property
    def pair(self) -> tuple[str, str] | None:
        """The (src, dst) that changes, or None."""
        return None if self.src is None or self.dst is None else (self.src, self.dst)


class RandomRedraws(Struct, frozen=True, forbid_unknown_fields=True):
    """Rates drawn at 0 s and again every `every_s`, for the sites and for the nodes outside sites. One number is both the up and
    the down rate."""

    seed: Seed  # same seed, same rates, on every machine
    every_s: EveryS  # seconds between draws
    low_mbps: Mbps  # smallest rate
    high_mbps: Mbps  # largest rate

    def __post_init__(self) -> None:
        if self.low_mbps > self.high_mbps:
            raise ValueError(f"low_mbps is above high_mbps ({self.low_mbps:g} > {self.high_mbps:g}): exchange them")


class CpuChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A new quota of one node from a moment on. 0.5 is half a core's time, shared by all processes of the node."""

    at_s: AtS  # seconds after the start
    node: NodeName  # the node that changes
    cpu_quota: Cores


class CpuRedraws(Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas drawn for every node at 0 s and again every `every_s`."""

    seed: Seed  # same seed, same quotas, on every machine
    every_s: EveryS  # seconds between draws
    low_cpu_quota: Cores  # smallest quota
    high_cpu_quota: Cores  # largest quota

    def __post_init__(self) -> None:
        low, high = self.low_cpu_quota, self.high_cpu_quota
        if low > high:
            raise ValueError(f"low_cpu_quota is above high_cpu_quota ({low:g} > {high:g}): exchange them")


def _check_delay(part: Access | Link) -> None:
    delay_ms, jitter_ms = part.delay_ms, part.jitter_ms
    if part.reorder_percent and not delay_ms:
        raise ValueError("reorder_percent is given without delay_ms: give a delay, which some packets then do without")
    if jitter_ms > delay_ms:
        raise ValueError(f"jitter_ms is {jitter_ms:g}, above the delay of {delay_ms:g} ms: give at most delay_ms")
    if delay_ms + jitter_ms > HIGH_DELAY_MS:
        raise ValueError(
            f"jitter_ms is {jitter_ms:g} beside a delay of {delay_ms:g} ms: give at most {HIGH_DELAY_MS:g} ms together"
        )
    for trace in part.traces if isinstance(part, Access) else ():
        delays_ms = [step.delay_ms for step in trace.steps if step.delay_ms is not None] if trace is not None else []
        if delays_ms and not jitter_ms <= min(delays_ms) <= max(delays_ms) <= HIGH_DELAY_MS - jitter_ms:
            raise ValueError(
                f"jitter_ms is {jitter_ms:g} beside a trace's delays of {min(delays_ms):g} to {max(delays_ms):g} ms:"
                f" give at most the least of them, and {HIGH_DELAY_MS:g} ms together"
            )
