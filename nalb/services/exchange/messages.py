"""The messages of the exchange of gradients: which tensors there are, which plan holds, and how far each process is.

The order of one iteration k (C coordinator, W worker, S server):

    W -> C  Sums(k-1)          only where sums are verified
    W -> C  Done(k-1)          all slices of k-1 are back
    C -> S  Collect(k-1)       all workers are done; only where k-1 was measured
    S -> C  Collected(k-1)     the server has reported its samples of k-1; an agent has with its Done
    C -> W  PrepareSlots(k)    only where plan k needs slots that the worker's own node's server does not have yet
    W -> C  SlotsReady(k)      from every worker that was asked
    C -> W  Plan(k)            no worker communicates iteration k before this; sent as soon as k-1 begins if k-1 cannot change it,
                               or if the wait for it would cost more

A plan that leaves routing to MXNet may hold for several iterations, k to k+n. A worker does not ask in between. It tells of them
with its next sign of life, so Done(k), ..., Done(k+n) come together. The next plan goes out when k begins.

A call that no plan covers, such as a broadcast and the first sums, is agreed on first (calls.py). Calls are counted from 0:

    W -> C  Called(k)          the worker would make call k; it pushes nothing yet
    C -> W  CallAgreed(k)      every worker has announced the same call
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from nalb.errors import InputError
from nalb.planning.precisions import ASKED
from nalb.planning.slices import PRECISIONS
from nalb.protocol.wire import MESSAGE_MOST, Bytes, Count, Index, Message, Name, Seconds, encode

NAME_MOST = 256  # characters of a tensor's name
SLICES_MOST = 1_000_000  # slices, or tensors, of one message

KeyName = Annotated[str, Meta(max_length=NAME_MOST)]
Dtype = Annotated[str, Meta(pattern=r"^(float(16|32|64)|bfloat16)\Z")]
Precision = Annotated[str, Meta(pattern=rf"^({'|'.join(PRECISIONS)})\Z")]
AskedPrecision = Annotated[str, Meta(pattern=rf"^({'|'.join(ASKED)})\Z")]
Elements = Annotated[int, Meta(ge=0, le=1 << 50)]  # of a tensor: PyTorch counts them in 64 bits
CallKind = Literal["sum", "broadcast", "single sum"]


class TensorSpec(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A tensor of the exchange, in the order in which all workers push."""

    name: KeyName
    elements: Elements
    dtype: Dtype
    group: Index  # tensors pushed by one call may share slices; those of different calls may not


# ---- from workers and servers


class Register(Message, frozen=True):
    """The tensors that a worker pushes each iteration; all workers must say the same."""

    tensors: Annotated[list[TensorSpec], Meta(min_length=1, max_length=SLICES_MOST)]
    number: Count = 0  # counts the worker's registrations, so that a repeated one is known
    precision: AskedPrecision = "float32"  # the precision that the worker's options ask for


class Called(Message, frozen=True):
    """A worker would make a call that no plan covers; it waits for CallAgreed."""

    number: Count  # calls that it has made before, as Report.calls counts them
    kind: CallKind
    keys: Annotated[list[KeyName], Meta(min_length=1, max_length=8)]  # the first ones, for people
    key_count: Index
    elements: Annotated[int, Meta(ge=0, le=1 << 62)]  # of all keys
    dtypes: Annotated[list[Dtype], Meta(min_length=1, max_length=8)]
    digest: Name  # of all keys, elements and dtypes in order


class SlotsReady(Message, frozen=True):
    """The slots that PrepareSlots asked for exist."""

    iteration: Count
    layout_version: Count


class Done(Message, frozen=True):
    """A worker has every slice of the iteration back. Moments are on the worker's monotonic clock."""

    iteration: Count
    communication_s: Seconds  # first push to last pull
    iteration_s: Seconds  # since the last iteration's end
    plan_wait_s: Seconds  # time spent waiting for the plan
    started_s: float  # moment of the first push
    finished_s: float  # moment of the last pull
    computed_s: float | None = None  # moment when its gradients were complete; None: not known
    cpu_s: Seconds | None = None  # CPU time of its process since then; None: not known
    is_whole: bool = True  # it summed all registered tensors, and was not broken off


class Collected(Message, frozen=True):
    """A server has reported all that it received in the iteration."""

    iteration: Count


class SliceSum(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """The numbers that sums.py takes of a slice."""

    plain: float  # sum of its elements
    signed: float  # sum of its elements with random signs
    magnitude: float  # sum of its elements' magnitudes


class Sums(Message, frozen=True):
    """The numbers of every slice, as the worker pushed it and as it came back; sent before Done where sums are verified."""

    iteration: Count
    sent: Annotated[list[SliceSum], Meta(max_length=SLICES_MOST)]
    received: Annotated[list[SliceSum], Meta(max_length=SLICES_MOST)]


# ---- from the coordinator


class Setup(Message, frozen=True):
    """How every worker must cut its tensors; the digest says whether the results agree."""

    registration: Count  # the Register whose tensors these are
    layout_version: Count  # grows with every cut
    num_nodes: Index
    num_servers: Index
    alpha_bytes: Annotated[float, Meta(gt=0)]
    fixed_slice_bytes: Annotated[float, Meta(gt=0)] | None  # in place of what alpha gives
    num_probe: Index  # per server
    precision: Precision  # in which sums of float32 values are answered, and pushed where the plan says nothing else
    digest: Name
    iteration: Count  # of its first plan; the others follow one by one


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
    """The worker must make these slots exist before anyone uses them."""

    iteration: Count
    # With the iteration it names the order: a new registration may ask again for the same iteration.
    layout_version: Count
    slots: list[NewSlots]


class SiteLeaders(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The servers that sum each slice within one site; empty for a site of one machine."""

    server_of_slice: list[Index]  # ranks of site servers, whose nodes' workers lead
    slot_of_slice: list[Index]  # numbers of their slots, two keys each (kvstore_patch/keys/slots.py)


class Plan(Message, frozen=True):
    """Where each slice of some iterations goes."""

    iteration: Count  # the first one
    until: Count  # the last one
    layout_version: Count  # of the registration whose slices these are
    scheme: Name
    measure: bool  # forecasts on
    inflight_bytes: list[Bytes]  # by rank: the window of each worker; empty: no limit
    server_of_slice: list[Index]  # server ranks
    slot_of_slice: list[Index]  # slot numbers on that server
    leaders: list[SiteLeaders] = field(
        default_factory=list
    )  # of each site, in a job by sites; servers are then global ones
    pushes: list[Precision] = field(
        default_factory=list
    )  # by rank: in which float32 values are pushed; empty: as answered

    @property
    def routes_itself(self) -> bool:
        """Whether MXNet routes this iteration, so that nothing is planned."""
        return not self.server_of_slice

    def window_of(self, rank: int) -> int:
        """The bytes that the worker of this rank may have under way; 0: no limit."""
        return self.inflight_bytes[rank] if self.inflight_bytes else 0


class Measure(Message, frozen=True):
    """Servers must send forecasts, or not, as the plan says."""

    on: bool


class Collect(Message, frozen=True):
    """Every worker is done: a server must report what it has not reported yet."""

    iteration: Count


class Finish(Message, frozen=True):
    """No further iteration will be planned: replay workers end here."""


FROM_PROCESSES = (Register, Called, SlotsReady, Done, Collected, Sums)
TO_PROCESSES = (Setup, CallAgreed, PrepareSlots, Plan, Measure, Collect, Finish)


def require_fit(message: Register | Sums) -> None:
    """Raises InputError for more tensors or slices than one message holds; only these two kinds grow with the model."""
    if (size_bytes := len(encode(message))) > MESSAGE_MOST:
        what, advice = (
            (f"{len(message.tensors)} tensors", "push fewer or larger ones, or give them shorter names")
            if isinstance(message, Register)
            else (f"sums of {len(message.sent)} slices", "leave out --verify-sums")
        )
        raise InputError(f"{what} take {size_bytes} bytes to tell, where {MESSAGE_MOST} can be told: {advice}")
