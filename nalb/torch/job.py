"""This process's part in a job: which machine it is of, its agent, and how it leaves."""

import hashlib
import json
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from msgspec.structs import replace

from nalb.errors import InputError, PeerError, listed, one_line
from nalb.failures import Cause, Failure, JobFailed, Phase
from nalb.options import options_in
from nalb.plane import orders as o
from nalb.plane.front import Front
from nalb.process.address import interface_of, own_address, own_machine, own_name
from nalb.protocol import wire
from nalb.schemes import GLOO
from nalb.settings import for_agents
from nalb.torch.gloo import Gloo
from nalb.torch.machine import Machine, machines_of
from nalb.torch.sums import close_gpus

T = TypeVar("T")
WAITING = tuple(os.path.dirname(one.__file__) + os.sep for one in (torch.autograd, dist, torch.nn.parallel))
SAVING = WAITING[1] + "checkpoint" + os.sep  # writes files, and waits for other ranks in modules of WAITING's
ALONE = "127.0.0.1"  # the address of a rank that has no others
TURN_S = 60.0  # for which torch's store is asked to wait at a time
ANSWER_S = 10.0  # that torch's store may take for an answer
WORD_S = 2.0  # that it may take at the end of a rank that fails: others wait for what this one tells
CUT_OFF_LOOKS = 2  # in a row at which gloo has lost a connection: it takes a moment to raise an error
FIRST_LOOK_S, LONGEST_LOOK_S = 0.01, 1.0  # between looks at the words of ranks that may have ended
LEAST_S = 0.002  # of a wait: torch counts milliseconds, and waits without limit for none
NOT_OVER_S = 0.1  # before its end a wait that fails has not come to its end
GLOO_ALONE = f"NALB_SCHEME={GLOO.name}"
ALIKE = {  # variables that machines must have alike, and what to do where they have not
    GLOO_ALONE: "give all machines this scheme, or none",
    "NALB_KEYS": "give all machines the keys of one `nalb keys`, or none",
    "NALB_SITES": "give all machines the same list, or none",
}

_has_joined = False  # whether this process has been in a job: the launcher's coordinator serves the first one only


class _Host(NamedTuple):
    """What each rank tells of its machine."""

    version: int  # stands first in every version of nalb, so that any can read it
    machine: str
    shares: bool  # whether ranks share it
    name: str
    alike: dict[str, str]  # of ALIKE: what stands for the value of each that is set
    fault: str  # of its variables; empty: they are right

    @classmethod
    def own(cls) -> "_Host":
        environ = os.environ
        alike = {}
        if by_gloo_alone():
            alike[GLOO_ALONE] = "set"
        if "NALB_KEYS" in environ:
            alike["NALB_KEYS"] = "set"  # each machine has a path of its own
        if sites := environ.get("NALB_SITES"):
            alike["NALB_SITES"] = _digest(",".join(sorted(sites.split(","))))
        shares = environ.get("LOCAL_WORLD_SIZE", "1") != "1"
        fault = ""
        try:
            options_in(environ)
        except InputError as error:
            fault = str(error)
        return cls(wire.VERSION, own_machine(environ), shares, own_name(environ), alike, fault)


class TorchJob:
    """Joins the job, with an agent where this rank is the first of its machine."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, ends_script: bool = True):
        """ends_script: whether a script that waits in gloo when the job fails is ended; otherwise gloo's timeout tells it."""
        # until this rank has left: a next default group of the process must not find this store's keys
        self._store: dist.Store | None = store
        self._rank = rank
        machines, nodes = machines_alike(store, rank, size)
        firsts = [ranks[0] for ranks in machines]
        self.is_needed = len(machines) > 1  # else the group of all ranks is gloo's alone
        self.front: Front | None = None
        self.groups: weakref.WeakSet[Gloo] = weakref.WeakSet()  # by which sums may go
        self._cut_off = 0  # looks in a row that found one of them cut off
        self.machine: Machine | None = None  # None: each rank is alone on its machine
        if self.is_needed and rank in firsts:
            number = firsts.index(rank)
            self.front = _join(store, number, nodes, len(machines[number]))
            self.front.ends_script, self.front.waits_elsewhere = ends_script, waits_in_torch
            self.front.why_in_vain = self._why_in_vain
        if self.is_needed and len(machines) < size:
            try:
                self.machine = Machine(
                    machines,
                    rank,
                    self.front,
                    lambda name, place, places: self.look_after(
                        new_gloo(dist.PrefixStore(name, store), place, places, timeout), self.front is not None
                    ),
                )
            except BaseException as error:
                self.leave(Failure(cause=Cause.SCRIPT, detail=f"cannot sum on its machine: {one_line(error)}"))
                raise
            if self.front is not None:
                self.front.note_unordered()  # a thread hands on what the machine's ranks have begun, later than they

    def look_after(self, gloo: Gloo, is_watched: bool) -> Gloo:
        """Note one of the groups by which sums may go, and return it.

        is_watched: whether to end the job where this rank waits in it for what cannot come. Then no rank may leave while another
        one waits in it.
        """
        gloo.is_watched = is_watched
        self.groups.add(gloo)
        return gloo

    def _why_in_vain(self) -> str | None:
        """Why this rank waits in gloo for what cannot come; answered once."""
        self._cut_off = self._cut_off + 1 if any(one.is_cut_off() for one in list(self.groups)) else 0
        is_sure = self._cut_off == CUT_OFF_LOOKS
        return "waits for other ranks in gloo, which has lost a connection to one of them" if is_sure else None

    def leave(self, failed: Failure | None = None) -> None:
        """Leave the job. failed: why the script ends, where it waits for no other rank."""
        store, self._store = self._store, None
        has_lost, word = failed is not None and self._has_lost_one(), None
        if self.machine is not None:
            if failed is None:
                with suppress(Exception):  # their errors are for whoever waits for them
                    self.machine.await_sums()  # its threads may not have begun all: the plane's end would overtake these
                if store is not None and self.front is None:
                    with suppress(JobFailed, RuntimeError):  # all others may have ended, and the store with them
                        sums = str(self.machine.sums_begun)
                        _asked(partial(store.set, f"left{self._rank}", sums), WORD_S)  # waits for no answer
            elif store is not None:
                key, own = f"failed{self.machine.number}", None if has_lost else failed.detail
                word = self._word_of_machine(store, key, own)
                if word is not None and word != own:  # another rank's: when is not known
                    failed = replace(failed, detail=word, phase=None, iteration=None)
                if has_lost and word is None and (word := self._left_early(store, self.machine)) is not None:
                    failed = Failure(cause=Cause.UNEQUAL, detail=word)
        if self.front is not None:
            if has_lost and word is None and self.front.ends_script:
                self.front.await_error()  # gloo's error names no rank, and hides which one ended first
            self.front.close(failed)
        if self.machine is not None:
            self.machine.close()
        close_gpus()

    def _has_lost_one(self) -> bool:
        """Whether another rank may have ended: then this one's error may be gloo's, which only follows from that."""
        with suppress(OSError):  # this process has no descriptor left
            return any(one.has_lost_one() for one in self.groups)
        return False

    def _word_of_machine(self, store: dist.Store, key: str, failed: str | None) -> str | None:
        """Why the first rank of this machine to fail does so: only the machine's first rank can tell other machines.

        failed: why this rank does; None: it may follow from another one's end, and others must not take it for the reason.
        """
        own = f"has rank {self._rank}, which {failed}" if failed and self.front is None else failed or ""
        with suppress(JobFailed, RuntimeError):  # the store is gone, or Python starts no thread any more
            return str(_asked(partial(store.compare_set, key, "", own), WORD_S), "utf-8") or None
        return None

    def _left_early(self, store: dist.Store, machine: Machine) -> str | None:
        """Which rank of the machine has left after fewer sums than this one has begun; None: none has, as far as is known."""
        with suppress(JobFailed, RuntimeError):  # as above
            for rank in machine.ranks:
                if rank != self._rank and _asked(partial(store.check, [key := f"left{rank}"]), WORD_S):
                    sums = int(_asked(partial(store.get, key), WORD_S))
                    if sums < machine.sums_begun:
                        return (
                            f"has rank {rank}, which left after {sums} sums, rank {self._rank} has begun {machine.sums_begun}: "
                            "all workers must make the same number of steps"
                        )
        return None


def meet(store: dist.Store, rank: int, size: int) -> str:
    """A name that the ranks of this group alone have, for their keys in the store. Raises as `told_by_all`.

    The store may have keys of ranks that have ended, as where torchrun restarts a job, and processes may have other pasts. So each
    rank tells a word that it draws, reads the words of all, and tells that it has read just these. Nobody who has ended does so for
    a new word. So ranks that have all read the same have met.
    """
    end_s = monotonic() + store.timeout.total_seconds()
    own = secrets.token_hex(8)
    words = told_by_all(store, "word", rank, size, own)
    pause_s = FIRST_LOOK_S
    while True:
        name = _digest(" ".join(words))
        _tell(store, f"read/{name}/", rank, True)
        keys = [f"read/{name}/{one}" for one in range(size)]
        if _asked(partial(store.check, keys), ANSWER_S):  # to wait for them would have torch warn each time
            return name
        if monotonic() > end_s:
            raise _absent(store, keys, f"come within {store.timeout.total_seconds():g} s", rank)
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)
        words = _told(store, [f"word{one}" for one in range(size)])
        _check_own(words[rank], own, rank)


def waits_in_torch(thread: int) -> bool:
    """Whether a thread is within a backward pass, or within a call of torch.distributed's that writes no checkpoint."""
    frame = sys._current_frames().get(thread)
    return frame is not None and (path := frame.f_code.co_filename).startswith(WAITING) and not path.startswith(SAVING)


def new_gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Gloo:
    """Gloo among some ranks, on the interface that has this rank's address.

    Gloo's groups of the script's own use the same interface: alone they take the address of the host's name, often 127.0.1.1.
    """
    if size == 1:
        return Gloo(store, rank, size, timeout, ALONE)
    address = _address(store)
    # Gloo may outlive its group. With this rank's own store the server would too, and a next default group would find its keys.
    if isinstance(_innermost(store), dist.TCPStore) and hasattr(store, "clone"):  # torch 2.5 has none
        store = store.clone()
    if interface := interface_of(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    return Gloo(store, rank, size, timeout, address)


def by_gloo_alone() -> bool:
    return os.environ.get("NALB_SCHEME") == GLOO.name


def machines_alike(store: dist.Store, rank: int, size: int) -> tuple[list[list[int]], list[str]]:
    """Each machine's ranks, and its node's name.

    Raises InputError on all ranks where a variable is wrong on one, or machines differ in what must be alike.
    """
    told = told_by_all(store, "host", rank, size, _Host.own())
    if others := [f"rank {other}" for other, one in enumerate(told) if one[0] != wire.VERSION]:
        why = (
            f"nalb on {listed(others)} is of another version than on rank {rank}: install the same nalb on all machines"
        )
        _refuse(store, rank, size, why)
    hosts = [_Host(*one) for one in told]
    if faults := [f"{one.fault} (on rank {other})" for other, one in enumerate(hosts) if one.fault]:
        _refuse(store, rank, size, faults[0])
    machines = machines_of([(one.machine, one.shares) for one in hosts])
    firsts = [ranks[0] for ranks in machines]
    names = [hosts[first].name for first in firsts]
    nodes = [name if names.count(name) == 1 else f"{name}.{first}" for name, first in zip(names, firsts, strict=True)]
    alike = {node: hosts[first].alike for node, first in zip(nodes, firsts, strict=True)}
    for node, ranks in zip(nodes, machines, strict=True):
        alike |= {f"rank {one} of {node}": hosts[one].alike for one in ranks if hosts[one].alike != alike[node]}
    if why := _unlike(alike):
        _refuse(store, rank, size, why)
    return machines, nodes


def _refuse(store: dist.Store, rank: int, size: int, why: str) -> NoReturn:
    """Raise InputError once all ranks, which do so too, know why."""
    with suppress(JobFailed):  # whoever holds the store must not end before
        told_by_all(store, "refusal", rank, size, why, ANSWER_S)
    raise InputError(why)


def _unlike(told: Mapping[str, Mapping[str, str]]) -> str:
    """How machines differ in what must be alike, and what to do; empty: they do not. told: `_Host.alike` by who tells it."""
    for variable, hint in ALIKE.items():
        having = [node for node, alike in told.items() if variable in alike]
        without = [node for node, alike in told.items() if variable not in alike]
        others = [node for node in having if told[node][variable] != told[having[0]][variable]]
        if having and without:
            return f"environment variable {variable} is set on {listed(having)}, but not on {listed(without)}: {hint}"
        if others:
            return f"environment variable {variable} differs between {having[0]} and {listed(others)}: {hint}"
    return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _join(store: dist.Store, rank: int, nodes: Sequence[str], processes: int) -> Front:
    """Start an agent, and let it join the job with all others. rank: of agents. nodes: by rank. processes: of this machine."""
    global _has_joined
    node, size = nodes[rank], len(nodes)
    coordinator = None if _has_joined else os.environ.get("NALB_COORDINATOR")
    _has_joined = True
    settings = for_agents(os.environ, node=node, endpoint="", size=size, role="agent")
    start = o.Start(rank, size, node, _address(store), rank == 0 and not coordinator, processes)
    front = Front(start, settings.startup_s, settings.silence_s)
    told = front.listening.address, front.listening.coordinator or coordinator
    try:
        agents = told_by_all(store, "agent's address", rank, size, told, settings.startup_s, nodes)
        front.join([one for one, _ in agents], agents[0][1])
    except BaseException as error:
        front.close(Failure(cause=Cause.SCRIPT, detail=f"did not join the job: {one_line(error)}"))
        raise
    return front


def _address(store: dist.Store) -> str:
    """This rank's, on the way to the store where it has a host."""
    found = _innermost(store)
    if isinstance(found, dist.TCPStore):
        return own_address(os.environ, found.host, "the host of torch's store, ")
    return own_address(os.environ)


def _innermost(store: dist.Store) -> dist.Store:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def told_by_all(
    store: dist.Store, name: str, rank: int, size: int, own: Any, within_s: float = 0.0, nodes: Sequence[str] = ()
) -> list[Any]:
    """What all ranks tell, by rank. Raises JobFailed, which names a rank that is missing, and InputError for two of one rank.

    within_s: 0: the store's timeout. nodes: the names of the ranks' nodes, where they are known.
    """
    _tell(store, name, rank, own)
    keys, within_s = [f"{name}{one}" for one in range(size)], within_s or store.timeout.total_seconds()

    def check() -> None:
        _check_own(_told(store, [keys[rank]])[0], own, rank)

    if not _await(store, keys, within_s, check) and not _asked(partial(store.check, keys), ANSWER_S):
        raise _absent(store, keys, f"told its {name} within {within_s:g} s", rank, nodes)
    told = _told(store, keys)
    _check_own(told[rank], own, rank)
    return told


def _check_own(told: Any, own: Any, rank: int) -> None:
    """Raise InputError where another process has told something in this one's place."""
    if json.dumps(told) != json.dumps(own):
        raise InputError(
            f"another process has come as rank {rank}: give each process a RANK of its own, and each job a MASTER_PORT of its own"
        )


def _tell(store: dist.Store, name: str, rank: int, own: Any) -> None:
    _asked(partial(store.set, f"{name}{rank}", json.dumps(own)), ANSWER_S)


def _told(store: dist.Store, keys: list[str]) -> list[Any]:
    """The values of keys that the store has."""
    # all with one question: a far store would take long to answer one for each
    return [json.loads(one) for one in _asked(partial(store.multi_get, keys), ANSWER_S)]


def _absent(store: dist.Store, keys: list[str], what: str, rank: int, nodes: Sequence[str] = ()) -> JobFailed:
    """The failure that the store has not all keys, of which each rank tells one."""
    missing = next((one for one, key in enumerate(keys) if not _asked(partial(store.check, [key]), ANSWER_S)), rank)
    who, role, node = ("", "worker", nodes[missing]) if nodes else (f"rank {missing} ", None, None)
    detail = f"{who}has not {what}: see its output"
    failure = Failure(cause=Cause.ABSENT, detail=detail, role=role, node=node, phase=Phase.START)
    return JobFailed(failure, PeerError.exit_code)


def _await(store: dist.Store, keys: list[str], within_s: float, check: Callable[[], None]) -> bool:
    """Wait until the store has the keys; whether it has. Raises JobFailed where the store is gone. check: called now and then."""
    end_s = monotonic() + within_s
    while (turn_s := min(end_s - monotonic(), TURN_S)) > LEAST_S:
        if _asked(partial(_has_come, store, keys, turn_s), turn_s + ANSWER_S):
            return True
        check()
    return False


def _has_come(store: dist.Store, keys: list[str], within_s: float) -> bool:
    """Whether the store has the keys in time. Raises torch's RuntimeError where the store is gone."""
    end_s = monotonic() + within_s
    try:
        store.wait(keys, timedelta(seconds=within_s))
        return True
    except RuntimeError:
        if end_s - monotonic() > NOT_OVER_S:
            raise
        return False


def _asked(call: Callable[[], T], within_s: float) -> T:
    """What a call of the store's returns. Raises JobFailed where the store is gone, or does not answer in time.

    A wait of torch's that has taken its time tells the store so, and waits for its word without limit. A store whose host is
    stopped or out of reach never answers. Then the thread that asks it stays behind.
    """
    answer = futures.Future[T]()

    def ask() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="nalb-store", daemon=True).start()
    try:
        return answer.result(within_s)
    except futures.TimeoutError:
        what = "does not answer"
    except RuntimeError as error:
        what = f"is gone ({one_line(error)})"
    detail = f"torch's store {what}, which rank 0 or its launcher holds"
    raise JobFailed(Failure(cause=Cause.NO_COORDINATOR, detail=detail, phase=Phase.START), PeerError.exit_code)
