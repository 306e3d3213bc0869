"""Makes sure that all workers make the same calls without a plan: broadcasts, and sums of no known iteration. Pure.

A call travels directly if it is of no known iteration (recorder.py). ps-lite pairs the pushes of direct calls by nothing but their
order, so a worker announces each of them and pushes nothing before all workers have announced the same one under the same number:

    W -> C  Called(k)          call number k would travel directly; calls are counted from 0, planned ones too
    C -> W  CallAgreed(k)      to all, once every worker has announced the same call k

A planned call is not announced and needs no round trip. Up to the first call in which two workers differ, their recorders have seen
the same calls and are in the same state. So the call in which they differ is direct on one of them at least: that worker waits and
pushes nothing. If the call is planned on the other, it cannot be completed there alone, and the next report says that the call was
made without having been announced. No sum of calls that differ is handed out; `exchange/test_calls.py` plays all orders.

A worker that has made fewer calls may still be computing, for as long as it likes. One that has left never makes the call:
`participant.left_behind` says so.
"""

import math
from collections import deque
from hashlib import blake2b

from nalb.errors import listed
from nalb.failures import Cause, Failure
from nalb.protocol.members import Members
from nalb.protocol.observers import Outgoing
from nalb.protocol.participant import Process
from nalb.services.exchange import messages as m
from nalb.services.exchange.recorder import Group, Key

NAMED = 3  # keys of a call that people are told
SUMS_MOST = 1 << 13  # that are remembered


def announcement(number: int, kind: m.CallKind, group: Group) -> m.Called:
    """The message that announces a call. Calls that differ in kind, keys, their order, elements or dtypes differ in it."""
    digest = blake2b(digest_size=16)
    for key, elements, dtype in group:
        digest.update(f"{_text(key)}\0{elements}\0{dtype}\n".encode())
    return m.Called(
        number,
        kind,
        [_text(key)[: m.NAME_MOST] for key, _, _ in group[:NAMED]],
        len(group),
        sum(elements for _, elements, _ in group),
        sorted({dtype for _, _, dtype in group}),
        digest.hexdigest(),
    )


def _text(key: Key) -> str:
    """A key as text: the word '1' and the number 1 are two keys, NumPy's number 1 and Python's are one."""
    return repr(key) if isinstance(key, str) else str(key)


def describe(call: m.Called) -> str:
    """A call as people read it."""
    keys = listed([*call.keys, *[""] * (call.key_count - len(call.keys))], most=len(call.keys))
    elements = f"{call.elements} element{'' if call.elements == 1 else 's'}"
    return f"{call.kind} of {keys}, {elements}, {listed(call.dtypes)}"


class CallAgreement:
    """Pairs the workers' announcements. Methods return why the job must end, or None; answers go to `outbox`."""

    def __init__(self, members: Members, outbox: deque[Outgoing]):
        self._members, self._outbox = members, outbox
        self._call: m.Called | None = None  # that some workers wait with
        self._waiting: dict[int, Process] = {}  # those, by rank, in order of arrival
        self._agreed = -1  # number of the last call that all have announced
        self._sums: deque[tuple[float, int]] = deque(maxlen=SUMS_MOST)  # when sums were agreed on, and their elements

    def last_iteration_s(self, elements: int, now_s: float) -> float:
        """Seconds since the first of the last sums, which hold so many elements together; infinite where they hold others."""
        for since_s, part in reversed(self._sums):
            elements -= part
            if elements <= 0:
                return now_s - since_s if elements == 0 else math.inf
        return math.inf

    def announced(self, worker: Process, call: m.Called, now_s: float) -> Failure | None:
        """Take in that a worker waits to make this call."""
        if call.number <= self._agreed or (worker.rank in self._waiting and call == self._call):
            return None  # a repetition
        if worker.rank in self._waiting:
            return worker.failure(
                Cause.PROTOCOL, "announced a call before the last one was agreed on: please report this"
            )
        if self._call is not None and call != self._call:
            return self._differ(self._call, worker, call)
        is_first = self._call is None
        self._call, self._waiting[worker.rank] = call, worker
        if is_first and (why := next(filter(None, map(self.reported, self._members.workers)), None)):
            return why
        if len(self._waiting) == len(self._members.workers):
            answer = m.CallAgreed(call.number)
            self._outbox.extend((one.identity, answer) for one in self._members.workers)
            self._call, self._waiting, self._agreed = None, {}, call.number
            if call.kind == "sum":
                self._sums.append((now_s, call.elements))
        return None

    def reported(self, process: Process) -> Failure | None:
        """Take in a process's count of calls. The call that others wait with may be among them only if it announced it too."""
        call = self._call
        if call is None or not process.is_worker or process.rank in self._waiting or process.calls <= call.number:
            return None
        first = next(iter(self._waiting.values()))
        return _missed(first, call, process, "went on with its iterations there")

    def _differ(self, known: m.Called, worker: Process, call: m.Called) -> Failure:
        first = next(iter(self._waiting.values()))
        if call.number != known.number:  # whoever is further made planned calls where the other announced one
            if call.number < known.number:
                first, known, worker, call = worker, call, first, known
            return _missed(first, known, worker, f"went on with its iterations there, and then made ({describe(call)})")
        made = f"made ({describe(call)})"
        if describe(call) == describe(known):
            made = "made one that looks alike, with other keys or sizes among those not named here"
        return _missed(first, known, worker, made)


def _missed(caller: Process, call: m.Called, other: Process, instead: str) -> Failure:
    detail = f"made a call ({describe(call)}) that {other.name} did not: {other.name} {instead}; all workers must make the same "
    return caller.failure(Cause.UNEQUAL, detail + "calls in the same order")
