"""A group of gloo's, and whether it waits for what cannot come.

Gloo may miss that a connection is lost: it closes its own end, and yet what is under way waits until gloo's timeout. So this module
looks for the connections themselves. Gloo has no call that names them, but the epoll instance of a group's thread does.
"""

import ctypes
import os
import re
import socket
import weakref
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from nalb.process.own_sockets import copy_of, own_descriptors

EPOLL = "anon_inode:[eventpoll]"  # what /proc names an epoll instance
ESTABLISHED = 1  # the state of a connection that carries data (tcp_states.h), the first byte of TCP_INFO
WATCHED = re.compile(r"^tfd:\s+(\d+)", re.MULTILINE)  # a descriptor in an epoll instance's fdinfo: proc(5)


_all: "weakref.WeakSet[Gloo]" = weakref.WeakSet()  # that are not gone


class Gloo:
    """Gloo among some ranks."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, address: str):
        """address: of this rank's interface."""
        before = set(own_descriptors(EPOLL))
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timeout
        made = [one for one in own_descriptors(EPOLL) if one not in before]
        self.group = dist.ProcessGroupGloo(store, rank, size, options)
        # Another thread may have made one meanwhile. Where gloo connects at first use, there is nothing to look for.
        self._epoll = next((one for one in made if len(_connections(one)) == size - 1), None)
        self._size = size
        self.is_watched = False  # whether somebody asks `is_cut_off` now and then
        self._works: list[dist.Work] = []  # each keeps its tensors
        _all.add(self)

    def begun(self, work: dist.Work) -> dist.Work:
        """Note what this group has begun, and return it."""
        if self.is_watched:
            self._works.append(work)
            self._under_way()
        return work

    def is_cut_off(self) -> bool:
        """Whether something is under way, and a connection is lost."""
        return self._under_way() and self.has_lost_one()

    def has_lost_one(self) -> bool:
        """Whether a connection is lost."""
        return self._epoll is not None and len(self.connections) < self._size - 1

    @property
    def connections(self) -> list[int]:
        """Descriptors of its connections that carry data; none where gloo connects at first use."""
        return [] if self._epoll is None else _connections(self._epoll)

    def keep_where_cut_off(self) -> None:
        """Keep the group to the process's very end where it is cut off: to end its threads would wait until gloo's timeout."""
        if self.is_cut_off():
            self.keep()

    def keep(self) -> None:
        """Keep the group to the process's very end."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))

    def _under_way(self) -> bool:
        for one in list(self._works):
            if one.is_completed():
                with suppress(ValueError):  # another thread has done so
                    self._works.remove(one)
        return bool(self._works)


def _keep_all() -> None:
    """In a child of os.fork: the threads of gloo stayed behind, so no group can end here."""
    for one in list(_all):
        one.keep()


os.register_at_fork(after_in_child=_keep_all)


def _connections(epoll: int) -> list[int]:
    """Descriptors of the connections that an epoll instance watches, and that carry data."""
    with open(f"/proc/self/fdinfo/{epoll}", encoding="utf-8") as about:
        watched = [int(one) for one in WATCHED.findall(about.read())]
    return [one for one in watched if _is_established(one)]


def _is_established(descriptor: int) -> bool:
    with suppress(OSError):  # closed meanwhile, or no TCP
        if (one := copy_of(descriptor)) is not None:
            with one:
                return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED
    return False
