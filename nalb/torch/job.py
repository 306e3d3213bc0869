"""This process's part in a job: which machine it is of, its agent, and how it leaves."""

import hashlib
import json
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from nalb.errors import PeerError, one_line
from nalb.failures import Cause, Failure, JobFailed, Phase
from nalb.plane import orders as o
from nalb.plane.front import Front
from nalb.process.address import interface_of, own_address, own_machine, own_name
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

_has_joined = False  # whether this process has been in a job: the launcher's coordinator serves the first one only


class TorchJob:
    """Joins the job, with an agent where this rank is the first of its machine."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, ends_script: bool = True):
        """ends_script: whether a script that waits in gloo when the job fails is ended; otherwise gloo's timeout tells it."""
        # until this rank has left: a next default group of the process must not find this store's keys
        self._store: dist.Store | None = store
        self._rank = rank
        own_host = own_machine(os.environ), os.environ.get("LOCAL_WORLD_SIZE", "1") != "1"
        machines = machines_of([tuple(one) for one in _told_by_all(store, "host", rank, size, own_host, "0")])
        firsts = [ranks[0] for ranks in machines]
        self.is_needed = len(machines) > 1  # else the group of all ranks is gloo's alone
        self.front: Front | None = None
        self._gloo: weakref.WeakSet[Gloo] = weakref.WeakSet()  # of all ranks that have fronts
        self.unwatched: weakref.WeakSet[Gloo] = weakref.WeakSet()  # of all ranks, of which some may leave before all do
        self._cut_off = 0  # looks in a row that found one cut off
        self.machine: Machine | None = None  # None: each rank is alone on its machine
        if self.is_needed and rank in firsts:
            hosts = _told_by_all(store, "name", firsts.index(rank), len(firsts), own_name(os.environ), "0")
            nodes = [
                host if hosts.count(host) == 1 else f"{host}.{first}" for host, first in zip(hosts, firsts, strict=True)
            ]
            self.front = _join(store, firsts.index(rank), nodes)
            self.front.ends_script, self.front.waits_elsewhere = ends_script, waits_in_torch
            self.front.why_in_vain = self._why_in_vain
        if self.is_needed and len(machines) < size:
            try:
                self.machine = Machine(
                    machines,
                    rank,
                    self.front,
                    lambda name, place, places: new_gloo(dist.PrefixStore(name, store), place, places, timeout),
                )
                if self.front is not None:
                    self.watch(self.machine.out)
            except BaseException as error:
                self.leave(f"cannot sum on its machine: {one_line(error)}")
                raise

    def watch(self, gloo: Gloo) -> None:
        """End the job where this group waits for what cannot come. Its ranks all have fronts, so they stay until all leave."""
        gloo.is_watched = True
        self._gloo.add(gloo)

    def _why_in_vain(self) -> str | None:
        """Why this rank waits in gloo for what cannot come; answered once."""
        groups = [*self._gloo, *(() if self.machine is None else self.machine.at_home)]
        self._cut_off = self._cut_off + 1 if any(one.is_cut_off() for one in groups) else 0
        is_sure = self._cut_off == CUT_OFF_LOOKS
        return "waits for other ranks in gloo, which has lost a connection to one of them" if is_sure else None

    def leave(self, failed: str | None = None, cause: Cause = Cause.SCRIPT) -> None:
        """Leave the job. failed, cause: why the script ends, where it waits for no other rank."""
        store, self._store = self._store, None
        has_lost, word = failed is not None and self._has_lost_one(), None
        if self.machine is not None:
            if failed is None:
                with suppress(Exception):  # their errors are for whoever waits for them
                    self.machine.await_sums()  # its threads may not have begun all: the plane's end would overtake these
            elif store is not None:
                word = self._word_of_machine(store, f"failed{self.machine.number}", None if has_lost else failed)
        if self.front is not None:
            if has_lost and word is None and self.front.ends_script:
                self.front.await_error()  # gloo's error names no rank, and hides which one ended first
            self.front.close(word or failed, cause)
        if self.machine is not None:
            self.machine.close()
        close_gpus()

    def _has_lost_one(self) -> bool:
        """Whether another rank may have ended: then this one's error may be gloo's, which only follows from that."""
        at_home = () if self.machine is None else self.machine.at_home
        with suppress(OSError):  # this process has no descriptor left
            return any(one.has_lost_one() for one in (*self._gloo, *self.unwatched, *at_home))
        return False

    def _word_of_machine(self, store: dist.Store, key: str, failed: str | None) -> str | None:
        """Why the first rank of this machine to fail does so: only the machine's first rank can tell other machines.

        failed: why this rank does; None: it may follow from another one's end, and others must not take it for the reason.
        """
        with suppress(JobFailed, RuntimeError):  # the store is gone
            if failed is None:
                is_told = _asked(partial(store.check, [key]), WORD_S, "0")
                return str(_asked(partial(store.get, key), WORD_S, "0"), "utf-8") if is_told else None
            own = failed if self.front is not None else f"has rank {self._rank}, which {failed}"
            return str(_asked(partial(store.compare_set, key, "", own), WORD_S, "0"), "utf-8")
        return None


def meet(store: dist.Store, rank: int, size: int) -> str:
    """A name that the ranks of this group alone have, for their keys in the store. Raises JobFailed.

    The store may have keys of ranks that have ended, as where torchrun restarts a job, and processes may have other pasts. So each
    rank tells a word that it draws, reads the words of all, and tells that it has read just these. Nobody who has ended does so for
    a new word. So ranks that have all read the same have met.
    """
    end_s = monotonic() + store.timeout.total_seconds()
    words = _told_by_all(store, "word", rank, size, secrets.token_hex(8), "0")
    pause_s = FIRST_LOOK_S
    while True:
        name = hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
        _tell(store, f"read/{name}/", rank, True)
        keys = [f"read/{name}/{one}" for one in range(size)]
        if _asked(partial(store.check, keys), ANSWER_S, "0"):  # to wait for them would have torch warn each time
            return name
        if monotonic() > end_s:
            raise _absent(store, keys, f"come within {store.timeout.total_seconds():g} s", rank, "0")
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)
        words = _told(store, [f"word{one}" for one in range(size)], "0")


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


def _join(store: dist.Store, rank: int, nodes: Sequence[str]) -> Front:
    """Start an agent, and let it join the job with all others. nodes: by rank."""
    global _has_joined
    node, size = nodes[rank], len(nodes)
    coordinator = None if _has_joined else os.environ.get("NALB_COORDINATOR")
    _has_joined = True
    settings = for_agents(os.environ, node=node, endpoint="", size=size, role="agent")
    start = o.Start(rank, size, node, _address(store), rank == 0 and not coordinator)
    front = Front(start, settings.startup_s, settings.silence_s)
    told = front.listening.address, front.listening.coordinator or coordinator
    try:
        _tell(store, "agent", rank, told)
        _await_agents(store, nodes, settings.startup_s)
        agents = _told(store, [f"agent{one}" for one in range(size)], nodes[0])
        front.join([one for one, _ in agents], agents[0][1])
    except BaseException as error:
        front.close(f"did not join the job: {one_line(error)}")
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


def _await_agents(store: dist.Store, nodes: Sequence[str], within_s: float) -> None:
    """Wait until the store has all agents. torch would wait for half an hour. Raises JobFailed, which says whose is missing."""
    end_s = monotonic() + within_s
    for rank, node in enumerate(nodes):
        left_s = max(end_s - monotonic(), 0.1)
        if not _await(store, [f"agent{rank}"], nodes[0], left_s):
            detail = f"has not told within {within_s:g} s where its agent listens: see its output"
            failure = Failure(cause=Cause.ABSENT, detail=detail, role="worker", node=node, phase=Phase.START)
            raise JobFailed(failure, PeerError.exit_code)


def _await(store: dist.Store, keys: list[str], host: str, within_s: float) -> bool:
    """Wait until the store has the keys; whether it has. Raises JobFailed where the store is gone.

    host: the node of the store.
    """
    end_s = monotonic() + within_s
    while (turn_s := min(end_s - monotonic(), TURN_S)) > LEAST_S:
        turn_end_s = monotonic() + turn_s
        try:
            _asked(partial(store.wait, keys, timedelta(seconds=turn_s)), turn_s + ANSWER_S, host)
            return True
        except JobFailed:
            raise
        except RuntimeError as error:
            if turn_end_s - monotonic() > NOT_OVER_S:
                raise _gone(error, host) from None
    return False


def _answered(call: Callable[[], T], host: str) -> T:
    """What a call of the store's returns that waits for nobody. Raises JobFailed where the store is gone, or does not answer."""
    try:
        return _asked(call, ANSWER_S, host)
    except JobFailed:
        raise
    except RuntimeError as error:
        raise _gone(error, host) from None


def _asked(call: Callable[[], T], within_s: float, host: str) -> T:
    """What a call of the store's returns. Raises its errors, and JobFailed where it does not return in time.

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
        raise _without_store("does not answer", host) from None


def _gone(error: RuntimeError, host: str) -> JobFailed:
    return _without_store(f"is gone ({one_line(error)})", host)


def _without_store(what: str, host: str) -> JobFailed:
    detail = f"torch's store {what}, which worker {host} or its launcher holds"
    return JobFailed(Failure(cause=Cause.NO_COORDINATOR, detail=detail, phase=Phase.START), PeerError.exit_code)


def _tell(store: dist.Store, name: str, rank: int, own: Any) -> None:
    store.set(f"{name}{rank}", json.dumps(own))


def _told(store: dist.Store, keys: list[str], host: str) -> list[Any]:
    """The values of keys that the store has."""
    # all with one question: a far store would take long to answer one for each
    return [json.loads(one) for one in _answered(partial(store.multi_get, keys), host)]


def _told_by_all(store: dist.Store, name: str, rank: int, size: int, own: Any, host: str) -> list[Any]:
    """What all ranks tell, by rank, within the store's timeout. Raises JobFailed."""
    _tell(store, name, rank, own)
    keys, within_s = [f"{name}{one}" for one in range(size)], store.timeout.total_seconds()
    if not _await(store, keys, host, within_s):
        raise _absent(store, keys, f"told its {name} within {within_s:g} s", rank, host)
    return _told(store, keys, host)


def _absent(store: dist.Store, keys: list[str], what: str, rank: int, host: str) -> JobFailed:
    """The failure that the store has not all keys, of which each rank tells one."""
    missing = next((one for one, key in enumerate(keys) if not _answered(partial(store.check, [key]), host)), rank)
    detail = f"rank {missing} has not {what}: see its output"
    return JobFailed(Failure(cause=Cause.ABSENT, detail=detail, phase=Phase.START), PeerError.exit_code)
