"""This process's part in a job: which machine it is of, its agent, and how it leaves."""

import json
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from nalb.errors import one_line
from nalb.plane import orders as o
from nalb.plane.address import own_address
from nalb.plane.front import Front
from nalb.settings import for_agents
from nalb.torch.machine import Machine, machines_of
from nalb.torch.sums import close_gpus


class TorchJob:
    """Joins the job, with an agent where this rank is the first of its machine."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, ends_script: bool = True):
        """ends_script: whether a script that waits in gloo when the job fails is ended; otherwise gloo's timeout tells it."""
        own_host = os.environ.get("NALB_NODE") or socket.gethostname(), os.environ.get("LOCAL_WORLD_SIZE", "1") != "1"
        machines = machines_of([tuple(one) for one in _told_by_all(store, "host", rank, size, own_host)])
        firsts = [ranks[0] for ranks in machines]
        self.is_needed = len(machines) > 1  # else the group of all ranks is gloo's alone
        self.front: Front | None = None
        self.machine: Machine | None = None  # None: each rank is alone on its machine
        if self.is_needed and rank in firsts:
            hosts = _told_by_all(store, "name", firsts.index(rank), len(firsts), own_host[0])
            node = own_host[0] if hosts.count(own_host[0]) == 1 else f"{own_host[0]}.{rank}"
            self.front = _join(store, firsts.index(rank), len(firsts), node)
            self.front.ends_script = ends_script
        if self.is_needed and len(machines) < size:

            def new_local(name: str, place: int, places: int) -> dist.ProcessGroupGloo:
                return new_gloo(dist.PrefixStore(name, store), place, places, timeout)

            self.machine = Machine(machines, rank, self.front, new_local)

    def leave(self, failed: str | None = None) -> None:
        """Leave the job. failed: why the script ends, where it waits for no other rank."""
        if self.front is not None:
            self.front.close(failed)
        if self.machine is not None:
            self.machine.close()
        close_gpus()


def new_gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """Gloo among some ranks, on the interface that has this rank's address."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=_address(store))]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _join(store: dist.Store, rank: int, size: int, node: str) -> Front:
    """Start an agent, and let it join the job with all others."""
    coordinator = os.environ.get("NALB_COORDINATOR")
    settings = for_agents(os.environ, node=node, endpoint="", size=size, role="agent")
    start = o.Start(rank, size, node, _address(store), rank == 0 and not coordinator)
    front = Front(start, settings.startup_s, settings.silence_s)
    told = front.listening.address, front.listening.coordinator or coordinator
    try:
        agents = _told_by_all(store, "agent", rank, size, told)
        front.join([one for one, _ in agents], agents[0][1])
    except BaseException as error:
        front.close(f"did not join the job: {one_line(error)}")
        raise
    return front


def _address(store: dist.Store) -> str:
    """This rank's, on the way to the store where it has a host."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return own_address(os.environ, store.host if isinstance(store, dist.TCPStore) else None)


def _told_by_all(store: dist.Store, name: str, rank: int, size: int, own: Any) -> list[Any]:
    """What all ranks tell, by rank."""
    store.set(f"{name}{rank}", json.dumps(own))
    return [json.loads(store.get(f"{name}{one}")) for one in range(size)]
