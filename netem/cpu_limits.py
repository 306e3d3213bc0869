"""How the CPU quotas of a network's nodes are kept: by cgroups, or where none can be written by a duty cycle.

Both are set and read back, and both say what they are (`label`): which one is used is always shown to the user.
"""

import os
from functools import cache, cached_property
from typing import Protocol

from nalb.errors import MachineError
from nalb.process import daemon
from nalb.process.own_program import own_argv
from netem import cgroups, duty_cycle, namespaces
from netem.network_file import Network
from netem.schedule import CpuQuotas, highest_total_quota


class CpuLimits(Protocol):
    """What keeps the quotas of one network."""

    @property
    def label(self) -> str:
        """The mechanism, for people."""

    def start(self) -> list[daemon.Daemon]:
        """The network's namespaces exist; no quota is set yet. Returns the processes that it needs."""

    def set(self, quotas: CpuQuotas) -> None:
        """Set the quotas of the nodes named, None for no limit, and read them back. Raises MachineError."""

    def times_stopped(self, node_name: str) -> int:
        """How often the node's processes had to stand since the start."""

    def argv(self, node_name: str, argv: list[str]) -> list[str]:
        """An argv that becomes argv with the node's quota on it."""


class CgroupLimits:
    """A group for each node."""

    def __init__(self, network: Network, hierarchy: cgroups.Hierarchy):
        self._network, self._hierarchy = network, hierarchy
        self.label = hierarchy.label

    def start(self) -> list[daemon.Daemon]:
        # The kernel gave the hub an inode that was free, so groups that carry it are of a hub that is gone.
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
        """Asked for once the network is up."""
        identity = namespaces.identity(namespaces.hub_namespace(self._network.name))
        if identity is None:
            raise MachineError(f"the hub of network {self._network.name} is gone: run `nalb net down` and start again")
        return identity[1]


class DutyCycleLimits:
    """One controller for all nodes. What runs in a node's namespace is found there: commands stay as they are."""

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
    """A cgroup's limits where a group can be made, limited and removed here; else the duty cycle."""
    hierarchy, why_not = _usable_hierarchy()
    return CgroupLimits(network, hierarchy) if hierarchy else DutyCycleLimits(network, why_not)


def require_cores(network: Network) -> None:
    """Raises MachineError where the quotas come to more cores than this process may use."""
    cores, wanted = len(os.sched_getaffinity(0)), highest_total_quota(network)
    if wanted > cores:
        raise MachineError(
            f"the CPU quotas of network {network.name} come to {wanted:g} cores where this machine has {cores}:"
            " lower cpu_quota, or scale all of them down alike"
        )


@cache
def _usable_hierarchy() -> tuple[cgroups.Hierarchy | None, str]:
    return cgroups.usable()
