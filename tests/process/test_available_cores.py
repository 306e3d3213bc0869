"""How many cores a process may use, read from the kernel and from trees of files as other kernels show them."""

import math
import os
from pathlib import Path

from nalb.process.available_cores import Cores, quota_files, read_quota


def proc_of(folder: Path, groups: str, mounts: list[str]) -> Path:
    """What /proc/self would show of a process in these groups."""
    (folder / "proc").mkdir()
    (folder / "proc/cgroup").write_text(groups)
    (folder / "proc/mountinfo").write_text("".join(f"{line}\n" for line in mounts), "utf-8", "surrogateescape")
    return folder / "proc"


def quota_in(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_every_group_up_to_the_root_may_limit(tmp_path):
    own = quota_in(tmp_path / "a/b", "cpu.max", "50000 100000\n")
    parent = quota_in(tmp_path / "a", "cpu.max", "max 100000\n")
    proc = proc_of(tmp_path, "0::/a/b\n", [f"30 23 0:26 / {tmp_path} rw - cgroup2 none rw"])
    assert quota_files(proc) == [own, parent]
    assert read_quota(own) == 0.5
    assert math.isinf(read_quota(parent))
    assert Cores(proc).now() == 0.5


def test_a_container_that_sees_only_its_own_group(tmp_path):
    own = quota_in(tmp_path, "cpu.cfs_quota_us", "20000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("80000\n")
    mounts = [
        f"30 23 0:26 /docker/x {tmp_path} rw - cgroup none rw,cpu,cpuacct",
        "31 23 0:27 / /nowhere rw - ext4 none rw",
        "32 23 0:28 / /tmp rw - tmpfs  rw",  # mounted without a source
        "33 23 0:29 / /media/caf\udce9 rw - vfat none rw",  # a byte that is not UTF-8
    ]
    proc = proc_of(tmp_path, "4:cpu,cpuacct:/docker/x\n3:cpuset:/docker/x\n", mounts)
    assert quota_files(proc) == [own]
    assert read_quota(own) == 0.25
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    assert math.isinf(read_quota(own))
    own.unlink()
    assert math.isinf(read_quota(own)), "the group is gone"


def test_without_quotas_the_cpus_count(tmp_path):
    proc = proc_of(tmp_path, "0::/\n", [])
    assert 0 < Cores(proc).now() <= len(os.sched_getaffinity(0))
