"""Finds, makes, limits, joins and removes the control groups that hold a node's processes to a CPU quota.

A node's group is `nalb-NETWORK.HUB.NODE` at the top of the hierarchy: v1 where a cpu controller is mounted (cpu.cfs_quota_us),
else v2 (cpu.max). HUB is the inode of the hub's namespace. Containers may have network namespaces of the same names, but all
containers see the same groups. An inode exists once in the whole kernel, so it tells whose group it is. A process joins the group
before it becomes the command, so all that it starts is in the group too.

Choice not taken: groups below this process's own. In v2 a group that holds processes can have no limited children, and
`nalb net down` would have to find the groups from another session.
"""

import errno
import os
import secrets
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nalb.errors import MachineError
from netem import namespaces

# A group's CPU time (run) in a period. A group that rested may spend a whole run at once, so with the kernel's own period of 100 ms
# a short batch would not be slowed at all. But a group loses the time that a busy machine does not give it within a period, so
# short periods give too little (measured in docs/network-files.md). With a burst, the next period makes up for that.
RUN_US = 2_000
BURST_US = 2_000
RUN_WITHOUT_BURST_US = 8_000  # kernels before 5.14
REMOVE_DEADLINE_S = 5.0
JOIN = 'echo 0 > "$0/cgroup.procs" && exec "$@"'  # $0 is the group; 0 means the process that writes


@dataclass(frozen=True)
class Hierarchy:
    """A mounted hierarchy with the cpu controller."""

    version: int  # 1 or 2
    root: Path  # where it is mounted

    @property
    def label(self) -> str:
        """The hierarchy's name, for people."""
        return "cgroup v1 (cpu.cfs_quota_us)" if self.version == 1 else "cgroup v2 (cpu.max)"

    def create(self, group: str) -> None:
        """Make a group without a limit. Raises OSError."""
        enabled = self.root / "cgroup.subtree_control"
        if self.version == 2 and "cpu" not in enabled.read_text(encoding="ascii").split():
            enabled.write_text("+cpu", encoding="ascii")
        (self.root / group).mkdir()

    def set_quota(self, group: str, cores: float | None) -> None:
        """Set a group's quota, None for no limit, and read it back. Raises MachineError."""
        folder = self.root / group
        burst = folder / ("cpu.cfs_burst_us" if self.version == 1 else "cpu.max.burst")
        run_us, period_us = bandwidth_us(cores, RUN_US if burst.exists() else RUN_WITHOUT_BURST_US)
        if self.version == 1:
            wanted = {"cpu.cfs_period_us": f"{period_us}", "cpu.cfs_quota_us": f"{-1 if run_us is None else run_us}"}
        else:
            wanted = {"cpu.max": f"{'max' if run_us is None else run_us} {period_us}"}
        if burst.exists():
            wanted[burst.name] = f"{BURST_US}"
        try:
            for name, value in wanted.items():
                (folder / name).write_text(value, encoding="ascii")
            found = {name: (folder / name).read_text(encoding="ascii").strip() for name in wanted}
        except OSError as error:
            raise MachineError(
                f"the CPU quota of {folder} cannot be set ({error.strerror}): run `nalb net down` and start again"
            ) from error
        if found != wanted:
            raise MachineError(f"{folder}: the kernel keeps {found} where {wanted} was set: report this kernel")

    def counters(self, group: str) -> dict[str, int]:
        """cpu.stat of a group: nr_periods, nr_throttled and more, as the kernel counts them."""
        lines = (self.root / group / "cpu.stat").read_text(encoding="ascii").splitlines()
        return {name: int(value) for name, value in (line.split() for line in lines)}

    def join_argv(self, group: str, argv: list[str]) -> list[str]:
        """An argv that joins the group and becomes `argv`. If it cannot join, it does not run `argv`."""
        return ["/bin/sh", "-c", JOIN, str(self.root / group), *argv]


def bandwidth_us(cores: float | None, least_run_us: int = RUN_US) -> tuple[int | None, int]:
    """(run, period) of a quota in microseconds: cores = run / period, neither below least_run_us. A run of None is no limit."""
    if cores is None:
        return None, 100_000  # the kernel's own default
    period_us = max(least_run_us, round(least_run_us / cores))
    return max(least_run_us, round(cores * period_us)), period_us


def hierarchies(mounts: Path = Path("/proc/self/mounts")) -> list[Hierarchy]:
    """The mounted hierarchies with a cpu controller. Only one has it at a time, but it may be mounted several times."""
    found = []
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, target, kind, options = line.split()[:4]
        root = Path(target)
        if kind == "cgroup" and "cpu" in options.split(","):
            found.append(Hierarchy(1, root))
        elif kind == "cgroup2":
            with suppress(OSError):
                if "cpu" in (root / "cgroup.controllers").read_text(encoding="ascii").split():
                    found.append(Hierarchy(2, root))
    return found


def usable() -> tuple[Hierarchy | None, str]:
    """Find a hierarchy by making, limiting and removing a group in it: (hierarchy, ""), or (None, why there is none)."""
    reasons = []
    group = f"{namespaces.PREFIX}trial-{secrets.token_hex(8)}"  # not the pid, which another PID namespace may have too
    for hierarchy in hierarchies():
        try:
            hierarchy.create(group)
            try:
                hierarchy.set_quota(group, 0.5)
            finally:
                (hierarchy.root / group).rmdir()
        except (OSError, MachineError) as error:
            reasons.append(f"{hierarchy.root}: {error.strerror if isinstance(error, OSError) else error}")
            continue
        return hierarchy, ""
    return None, "; ".join(reasons) or "no cgroup hierarchy with a cpu controller is mounted"


def group_name(network_name: str, hub_inode: int, node_name: str) -> str:
    """The name of one node's group, in the network whose hub's namespace has that inode."""
    return f"{namespaces.hub_namespace(network_name)}.{hub_inode}.{node_name}"


def standing(network_name: str, hub_inode: int) -> list[Path]:
    """The groups of one network that exist, in all hierarchies."""
    pattern = group_name(network_name, hub_inode, "*")
    return sorted({path for hierarchy in hierarchies() for path in hierarchy.root.glob(pattern) if path.is_dir()})


def remove(groups: list[Path]) -> None:
    """Kill all processes in the groups and remove the groups. Groups that do not exist are passed over.

    Raises MachineError when one does not get empty within REMOVE_DEADLINE_S.
    """
    deadline_s = time.monotonic() + REMOVE_DEADLINE_S
    for group in groups:
        while not _try_remove(group):
            if time.monotonic() > deadline_s:
                raise MachineError(f"{group} does not get empty: end what runs in it, then run `nalb net down` again")
            time.sleep(0.01)


def _try_remove(group: Path) -> bool:
    try:
        if (group / "cgroup.kill").exists():  # v2 since Linux 5.14
            (group / "cgroup.kill").write_text("1", encoding="ascii")
        else:
            _kill_each(group)
        group.rmdir()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return True
        if error.errno == errno.EBUSY:
            return False
        raise MachineError(f"{group} cannot be removed ({error.strerror}): run `nalb net down` as root") from error
    return True


def _kill_each(group: Path) -> None:
    for word in (group / "cgroup.procs").read_text(encoding="ascii").split():
        # v2 shows a process of another PID namespace as 0, and kill(0) would hit our own process group.
        if int(word) > 0:
            with suppress(ProcessLookupError):
                os.kill(int(word), signal.SIGKILL)
