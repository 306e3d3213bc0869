"""What a training process and its agent tell each other, one message per packet of a local socket (SOCK_SEQPACKET). Pure.

    T -> A  Start              first of all: who this rank is and where the job is
    A -> T  Listening          where other agents reach this one
    T -> A  Peers              all agents' addresses; the agent joins the job
    A -> T  AllJoined          all processes of the job are there
    T -> A  Segment            shared memory of the sums that follow, whose descriptor comes with the packet
    T -> A  Called             the script would make a call that no plan covers (nalb/services/exchange/calls.py)
    A -> T  CallAgreed(k)      every rank has announced the same call k
    T -> A  TensorList         what every iteration sums, from the next one on
    A -> T  Route(k to n)      a plan for these iterations has come: by the plane, or by the group's own ring
    A -> T  Finish             the job wants no further iteration: replays end here
    T -> A  JoinBatching, Computed   the script asks for batch sizes, or has computed a batch
    A -> T  BatchSizes         of iterations to come
    T -> A  Sum(tensor)        a tensor's place in shared memory, once per tensor and iteration
    T -> A  Ready(tensor, n)   its first n elements are there
    A -> T  Summed(tensor, n)  its first n elements hold the sum
    T -> A  BreakOff           the iteration under way has no further tensors; what iterations consist of is unknown
    T -> A  RingBegun          a sum by the ring begins
    T -> A  RingDone(k)        iteration k was summed by the ring
    T -> A  ByGloo             the script begins a collective of all ranks that is gloo's alone
    T -> A  Unordered          their order may differ between ranks
    T -> A  WriteKept          what rounding took is to be in a file, after the sums before
    A -> T  KeptWritten        it is there
    T -> A  ReadKept           go on with what that file holds
    T -> A  Leave              the script ends
    A -> T  Ended              why the agent ends, where not in good order

Called, CallAgreed, Finish, JoinBatching, Computed and BatchSizes are the coordinator's own messages, which the agent hands on.
Tensors are numbered within an iteration from 0, in the order in which TensorList names them. Whoever closes the socket has ended.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nalb.failures import Failure
from nalb.services.batching.messages import BatchSizes, Computed, JoinBatching
from nalb.services.exchange.messages import CallAgreed, Called, Finish, TensorSpec

PACKET_MOST = 1 << 20  # bytes of a packet; TensorList comes in parts that fit

Number = Annotated[int, Meta(ge=0)]


class Order(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of every message."""


class Start(Order, frozen=True):
    """Who this rank is. The agent has the training process's environment, and reads the job's options there."""

    rank: Number
    size: Number
    node: str
    address: str  # an IP address of this machine that the other ranks reach
    starts_coordinator: bool  # rank 0's, where no launcher runs one
    processes: Number = 1  # training processes of this machine: a launcher ends all of them when one has ended


class Listening(Order, frozen=True):
    """Where other agents reach this one."""

    address: str  # tcp://host:port
    coordinator: str | None = None  # host:port, where this agent has started one


class Peers(Order, frozen=True):
    """All agents' addresses, by rank."""

    addresses: list[str]
    coordinator: str  # host:port


class AllJoined(Order, frozen=True):
    """All processes of the job are there."""


class Segment(Order, frozen=True):
    """Shared memory of the sums that follow; its descriptor comes with the packet."""

    size_bytes: Number


class TensorList(Order, frozen=True):
    """What every iteration sums, from the next one on; each tensor is a group of its own."""

    tensors: list[TensorSpec]
    is_whole: bool  # no further part of the list follows
    calls: Number  # that the script has made so far, this one included, which waits for a plan


class Route(Order, frozen=True):
    """How iterations `first` to `until` travel."""

    registration: Number  # counts the whole Registers, from 0: a Route of an earlier one is void
    first: Number
    until: Number
    by_ring: bool


class Sum(Order, frozen=True):
    """The next tensor of the iteration, in shared memory from offset_bytes on."""

    tensor: Number
    offset_bytes: Number
    calls: Number  # that the script has made so far, this one included
    asked_s: float  # when the script asked for the iteration's first sum, on the monotonic clock
    planned_s: float  # when it had that iteration's route


class Ready(Order, frozen=True):
    """The first `elements` elements of the tensor are in shared memory."""

    tensor: Number
    elements: Number


class Summed(Order, frozen=True):
    """The first `elements` elements of the tensor in shared memory hold the sum."""

    tensor: Number
    elements: Number


class BreakOff(Order, frozen=True):
    """The iteration under way, if any, has no further tensors."""


class RingBegun(Order, frozen=True):
    """A sum by the ring begins."""

    calls: Number  # that the script has made so far, this one included


class RingDone(Order, frozen=True):
    """An iteration was summed by the ring; times are of the monotonic clock."""

    iteration: Number
    asked_s: float  # when the script asked for its first sum
    started_s: float  # when it had the route
    computed_s: float
    finished_s: float
    is_whole: bool = True  # it was not broken off


class ByGloo(Order, frozen=True):
    """The script begins a collective of all ranks that is gloo's alone, such as a barrier."""


class Unordered(Order, frozen=True):
    """From now on the order of sums and collectives by gloo may differ between ranks, or their count."""


class WriteKept(Order, frozen=True):
    """What rounding took is to be in this file, once the sums before are there."""

    path: str


class KeptWritten(Order, frozen=True):
    """It is there."""


class ReadKept(Order, frozen=True):
    """Go on with what this file holds of what rounding took, where it is of the same tensors."""

    path: str


class Leave(Order, frozen=True):
    """The script ends; in good order, unless a failure says otherwise."""

    failure: Failure | None = None


class Ended(Order, frozen=True):
    """Why the agent ends, and with it the job."""

    failure: Failure


FromTraining = (
    Start | Peers | Segment | Called | TensorList | JoinBatching | Computed | Sum | Ready | BreakOff | RingBegun | RingDone | ByGloo
    | Unordered | WriteKept | ReadKept | Leave
)  # fmt: skip
FromAgent = Listening | AllJoined | CallAgreed | Route | Finish | BatchSizes | Summed | KeptWritten | Ended

encode = msgspec.msgpack.Encoder().encode
decode_at_agent = msgspec.msgpack.Decoder(FromTraining).decode  # these two raise msgspec.DecodeError
decode_at_training = msgspec.msgpack.Decoder(FromAgent).decode
