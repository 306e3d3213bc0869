"""Keeps the CPU quotas of a network's nodes: by cgroups, or by a duty cycle where no cgroup can be written.

Both mechanisms read quotas back after setting them. The user is always shown which one is used (`label`).
"""

import os
from functools import cache, cached_property
from typing import Protocol

from nalb.errors import MachineError
from nalb.process import daemon
from nalb.process.own_program import own_argv
from netem import cgroups, duty_cycle, namespaces
from netem.network import Network
from netem.schedule import CpuQuotas, highest_total_quota


class CpuLimits(Protocol):
    """A mechanism that keeps the CPU quotas of one network."""

    stops_processes: bool  # by SIGSTOP

    @property
    def label(self) -> str:
        """The mechanism's name, for people."""

    def start(self) -> list[daemon.Daemon]:
        """Start the mechanism, once the network's namespaces exist and before any quota is set.

        Returns the processes that the mechanism needs. Raises MachineError.
        """

    def set(self, quotas: CpuQuotas) -> None:
        """Set the quotas of the given nodes, in cores (None: no limit), and read them back. Raises MachineError."""

    def times_stopped(self, node_name: str) -> int:
        """How often the node's processes were stopped since the start."""

    def argv(self, node_name: str, argv: list[str]) -> list[str]:
        """An argv that becomes `argv` under the node's quota."""


class CgroupLimits:
    """Keeps quotas by one cgroup for each node."""

    stops_processes = False

    def __init__(self, network: Network, hierarchy: cgroups.Hierarchy):
        self._network, self._hierarchy = network, hierarchy
        self.label = hierarchy.label

    def start(self) -> list[daemon.Daemon]:
        # The kernel gave the hub an inode that was free, so groups that carry this inode belong to a hub that is gone.
        cgroups.remove(cgroups.standing(self._network.name, self._hub_inode))
        for name in self._network.node_names():
            try:
                self._hierarchy.create(self._group(name))
            except OSError as error:
                raise MachineError(
                    f"group {self._group(name)} cannot be made in {self._hierarchy.root} ({error.strerror}): see `nalb doctor`"
                ) from error
        return []

    def set(self, quotas: CpuQuotas) -> None:
        for name, quota in quotas.items():
            self._hierarchy.set_quota(self._group(name), quota)

    def times_stopped(self, node_name: str) -> int:
        return self._hierarchy.counters(self._group(node_name))["nr_throttled"]

    def argv(self, node_name: str, argv: list[str]) -> list[str]:
        return self._hierarchy.join_argv(self._group(node_name), argv)

    def _group(self, node_name: str) -> str:
        return cgroups.group_name(self._network.name, self._hub_inode, node_name)

    @cached_property
    def _hub_inode(self) -> int:
        """The inode of the hub's namespace, which must exist. Raises MachineError."""
        identity = namespaces.identity(namespaces.hub_namespace(self._network.name))
        if identity is None:
            raise MachineError(f"the hub of network {self._network.name} is gone: run `nalb net down` and start again")
        return identity[1]


class DutyCycleLimits:
    """Keeps quotas by one controller for all nodes. It finds processes by their namespace, so commands stay as they are."""

    stops_processes = True

    def __init__(self, network: Network, why_no_cgroup: str):
        self._network, self._hub = network, namespaces.hub_namespace(network.name)
        self.label = f"duty cycle of SIGSTOP and SIGCONT, coarser than a cgroup ({why_no_cgroup})"

    def start(self) -> list[daemon.Daemon]:
        controller = own_argv("netem.duty_cycle", self._network.name, *self._network.node_names())
        return [daemon.start(namespaces.inside_argv(self._hub, controller), f"the duty cycle of {self._hub}")]

    def set(self, quotas: CpuQuotas) -> None:
        duty_cycle.set_quotas(self._hub, quotas)

    def times_stopped(self, node_name: str) -> int:
        return duty_cycle.set_quotas(self._hub, {})[node_name]

    def argv(self, node_name: str, argv: list[str]) -> list[str]:
        del node_name
        return argv


def choose(network: Network) -> CpuLimits:
    """Choose cgroups where one can be made, limited and removed on this machine, else the duty cycle."""
    hierarchy, why_not = _usable_hierarchy()
    return CgroupLimits(network, hierarchy) if hierarchy else DutyCycleLimits(network, why_not)


def require_cores(network: Network) -> None:
    """Raise MachineError if the quotas come to more cores than this process may use."""
    cores, wanted = len(os.sched_getaffinity(0)), highest_total_quota(network)
    if wanted > cores:
        raise MachineError(
            f"the CPU quotas of network {network.name} come to {wanted:g} cores where this machine has {cores}:"
            " lower cpu_quota, or scale all of them down alike"
        )


@cache
def _usable_hierarchy() -> tuple[cgroups.Hierarchy | None, str]:
    return cgroups.usable()
