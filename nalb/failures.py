"""Says why a job ends, as data. A Failure is made where the fault is found, carried unchanged by messages and files, and put into
words once.

Code asks a Failure for its fields. `detail` is for people alone: no code looks into it, so its words may change at any time.
"""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from nalb.errors import CheckpointError, InputError, JobError, StoreError, printable

DETAIL_MOST = 4096  # characters
NOT_LEFT = (
    "ended with 0 without leaving the job: end the script by its last line or by sys.exit, not by os._exit or exec, or leave before"
    " that by torch's destroy_process_group()"
)


class Phase(Enum):
    """What the job was doing."""

    START = "start"  # not all processes have joined
    INIT = "init"  # all processes have joined; nothing is planned yet
    PLAN = "plan"
    FORWARD = "forward"
    EXCHANGE = "exchange"
    END = "end"
    CHECKPOINT = "checkpoint"


Moment = tuple[Phase | None, Annotated[int, Meta(ge=0, le=1 << 62)] | None]  # phase and iteration


class Cause(Enum):
    """What went wrong."""

    ABSENT = "absent"  # not all processes came in time
    SILENT = "silent"  # a process gives no sign of life
    STOPPED = "stopped"  # a signal has stopped a process
    ENDED = "ended"  # a process exited or was killed
    SCRIPT = "script"  # the training script failed
    INPUT = "input"  # the script, an option or a file asks for what cannot be
    CHECKPOINT = "checkpoint"  # a checkpoint could not be written
    NO_STORE = "no-store"  # a worker ended without a KVStore of nalb's
    UNREACHABLE = "unreachable"  # nothing passes between two nodes
    STUCK = "stuck"  # sums are missing, and nothing is under way
    LINGERING = "lingering"  # all have left, but ps-lite does not end
    NO_COORDINATOR = "no-coordinator"  # a process hears nothing from the coordinator
    COORDINATOR = "coordinator"  # the coordinator itself failed
    IDENTITY = "identity"  # a process is not who it says, or two say the same
    PROTOCOL = "protocol"  # a process said what it may not say
    UNEQUAL = "unequal"  # workers do not make the same calls
    BATCHING = "batching"  # workers do not take part in batch sizes as they should
    TOKENS = "tokens"  # workers do not take part in tokens as they should
    REFUSED = "refused"  # the network's rates or the tensors cannot be planned
    WRONG_SUM = "wrong-sum"  # servers answered something else than the sum
    PROCESS = "process"  # something of nalb or MXNet failed in a process


# What the user gave is wrong, so every attempt ends alike, on whatever nodes.
_WRONG_INPUT = {Cause.INPUT, Cause.BATCHING, Cause.TOKENS, Cause.REFUSED, Cause.NO_STORE}
# One node reports these causes, but another node may be at fault, or the script on all of them.
_BLAME_NOBODY = {Cause.UNREACHABLE, Cause.NO_COORDINATOR, Cause.UNEQUAL} | _WRONG_INPUT

Role = Annotated[str, Meta(pattern=r"^(worker|(site |global )?server|scheduler|agent)\Z")]
Node = Annotated[str, Meta(min_length=1, max_length=255)]


class Failure(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Why a job ends. A field is None if it is not known, or if the failure is not of one process."""

    cause: Cause
    detail: Annotated[str, Meta(max_length=DETAIL_MOST)]  # what happened and what to do, without who and when
    role: Role | None = None
    node: Node | None = None
    phase: Phase | None = None
    iteration: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None

    @property
    def has_moment(self) -> bool:
        """Whether the failure says when it happened."""
        return self.phase is not None or self.iteration is not None

    @property
    def culprit(self) -> str | None:
        """The node that failed, where that is known."""
        return None if self.cause in _BLAME_NOBODY else self.node

    @property
    def is_wrong_input(self) -> bool:
        """Whether the script, an option or a file must be corrected, so that no restart helps."""
        return self.cause in _WRONG_INPUT

    def is_of(self, role: str, node: str) -> bool:
        """Whether the failure names this process."""
        return (self.role, self.node) == (role, node)


def cause_of(error: BaseException | None, otherwise: Cause) -> Cause:
    """The cause of a failure by this error: INPUT where every attempt would end alike.

    That is wrong input, a call that the store cannot do, and a checkpoint that does not fit; not one that cannot be written.
    """
    if isinstance(error, CheckpointError):
        return Cause.INPUT if error.writing is None else otherwise
    return Cause.INPUT if isinstance(error, InputError | StoreError) else otherwise


def of_script(error: BaseException | None, detail: str) -> Failure:
    """The failure of a worker whose script ends by this error; None: by an exit status alone.

    A checkpoint that cannot be written is named by its iteration: the job's own may be counted otherwise.
    """
    if isinstance(error, CheckpointError) and error.writing is not None:
        cause, phase, iteration = Cause.CHECKPOINT, Phase.CHECKPOINT, error.writing
        return Failure(cause=cause, detail=detail, role="worker", phase=phase, iteration=iteration)
    return Failure(cause=cause_of(error, Cause.SCRIPT), detail=detail, role="worker")


def carried(failure: Failure) -> Failure:
    """The failure as a message can carry it: `detail` has at most DETAIL_MOST characters.

    A ? replaces each character that UTF-8 cannot encode, as in names of foreign files, or that would steer a terminal.
    """
    return replace(failure, detail=printable(failure.detail[:DETAIL_MOST]))


def render(failure: Failure) -> str:
    """The failure in one line: `phase exchange of iteration 3: worker n1 has not reported for 3.1 s`."""
    moments = [f"phase {failure.phase.value}"] if failure.phase else []
    moments += [] if failure.iteration is None else [f"iteration {failure.iteration}"]
    who = " ".join(word for word in (failure.role, failure.node) if word)
    text = f"{who} {failure.detail}" if who else failure.detail
    return f"{' of '.join(moments)}: {text}" if moments else text


class JobFailed(JobError, RuntimeError):
    """A process of a job failed. `where` names its log, where one can read more.

    A RuntimeError, as errors of torch.distributed and of MXNet are: scripts catch that.
    """

    def __init__(self, failure: Failure, exit_code: int = 1, where: str = ""):
        super().__init__(render(failure) + (f"; {where}" if where else ""), exit_code)
        self.failure, self.where = failure, where

    def __reduce__(self) -> tuple[type["JobFailed"], tuple[Failure, int, str]]:
        return type(self), (self.failure, self.exit_code, self.where)
