"""ps-lite as a data plane: what the shim sees of it, in the words of the control plane (nalb/transport/worker_session.py)."""

from collections.abc import Callable

from kvstore_patch.shim import Shim
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from nalb.settings import Settings
from nalb.transport.client import Drained
from nalb.transport.curvezmq import knock
from nalb.transport.keys import own_keys

FIRST_ID = 8  # ps-lite numbers servers 8, 10, ... and workers 9, 11, ... by rank


def server_rank(ps_id: int) -> int:
    """The rank of the server with this id."""
    return (ps_id - FIRST_ID) // 2


def check_encryption(settings: Settings) -> None:
    """Check that this process can talk to an encrypted job; does nothing in a job without keys.

    Raises MachineError without the shim, which encrypts: ps-lite would talk in plain text. Raises PeerError where the job does not
    accept this node's key: ps-lite would wait for ever.
    """
    keys = own_keys(settings)
    if keys is None:
        return
    Shim.loaded()
    if settings.role != "scheduler":  # the scheduler itself answers these knocks
        knock(keys, settings.endpoint, settings.startup_s)


class PsLite:
    """A process's messages in ps-lite. Slots are made by `make_room`, which only workers have."""

    def __init__(self, shim: Shim, make_room: Callable[[m.PrepareSlots], None] = lambda _: None):
        self._shim, self.make_room = shim, make_room
        self._rows: list[wire.SampleRow] = []

    def begin(self, plan: m.Plan) -> None:
        """Send forecasts or not, and note the time of the next push."""
        self._shim.set_forecasts(plan.measure)
        self._shim.mark()

    @property
    def first_sent_s(self) -> float | None:
        """When the first push since `begin` was handed to libzmq, on the monotonic clock, seconds; None: none was."""
        return self._shim.first_sent_ns * 1e-9 or None

    def timings(self) -> Drained:
        """The oldest rows not given yet, as many as a Report holds, and the number of samples that the shim has lost so far."""
        self._rows += [wire.SampleRow(_sender(ps_id), *timed) for ps_id, *timed in self._shim.drain()]
        rows, self._rows = self._rows[: wire.ROWS_MOST], self._rows[wire.ROWS_MOST :]
        return Drained(rows, self._shim.drops)


def _sender(ps_id: int) -> int:
    """The sender's peer_number; -1 where the id is no worker's and no server's."""
    return wire.peer_number(server_rank(ps_id), ps_id % 2 == 1) if ps_id >= FIRST_ID else -1
