"""How many cores this process may use: its CPUs, less the time that a host steals from them, within its control groups' quotas.

Time that other processes of the machine take is not subtracted, since they may stop at any moment. The module is for Linux, and
knows control groups of both versions (cgroups(7), proc_pid_mountinfo(5)).
"""

import math
import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

PROC = Path("/proc/self")
STEP_S = 1.0  # between two looks, each of which costs 0.1 ms of CPU


class Cores:
    """Tells how many cores this process may use; finds the files of its quotas once, and reads them again and again."""

    def __init__(self, proc: Path = PROC) -> None:
        self._quotas = quota_files(proc)
        self._times, self._at_s, self._cores = psutil.cpu_times(), -math.inf, 0.0

    def now(self) -> float:
        """The cores that this process may use, as of at most STEP_S ago. Stolen time is averaged from one look to the next."""
        if time.monotonic() - self._at_s >= STEP_S:
            times, before = psutil.cpu_times(), self._times
            self._times, self._at_s = times, time.monotonic()
            elapsed_s = sum(times[:8]) - sum(before[:8])  # without guests' times, which user times contain
            stolen = min(1.0, max(0.0, times.steal - before.steal) / elapsed_s) if elapsed_s > 0 else 0.0
            cpus = len(os.sched_getaffinity(0)) * (1 - stolen)
            self._cores = min([max(cpus, 0.01), *map(read_quota, self._quotas)])
        return self._cores


def quota_files(proc: Path = PROC) -> list[Path]:
    """The files of this process's control groups, from its own up to the root, that may limit its CPU time."""
    group_of = dict(line.split(":", 2)[1:] for line in _lines(proc / "cgroup"))
    found: list[Path] = []
    for line in _lines(proc / "mountinfo"):
        mount, _, source = line.partition(" - ")
        (root, target), (kind, *_, options) = mount.split()[3:5], source.split()  # a mount's source may be empty
        if kind == "cgroup2":
            group, name = group_of.get(""), "cpu.max"
        elif kind == "cgroup" and "cpu" in options.split(","):
            group = next((one for key, one in group_of.items() if "cpu" in key.split(",")), None)
            name = "cpu.cfs_quota_us"
        else:
            continue
        if group is not None and Path(group).is_relative_to(root):
            own = Path(group).relative_to(root)
            found += [Path(target, folder, name) for folder in (own, *own.parents)]
    return [file for file in dict.fromkeys(found) if file.exists()]


def _lines(file: Path) -> list[str]:
    # names of mount points need not be UTF-8
    return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def read_quota(file: Path) -> float:
    """The cores that a control group's file allows; infinity for no limit, or for a group that is gone."""
    with suppress(OSError):
        words = file.read_text(encoding="ascii").split()
        if file.name == "cpu.cfs_quota_us":
            words.append(file.with_name("cpu.cfs_period_us").read_text(encoding="ascii"))
        if words[0] not in ("max", "-1"):
            return int(words[0]) / int(words[1])
    return math.inf
