"""What a network file says of its machines: CPU quotas, how they change over time, and memory that others hold.

cpu_quota is in cores: 0.5 is half a core's time, shared by all processes of the node, 2 is two cores' time.
"""

from dataclasses import dataclass

from netem.file_table import HIGH_TIME_S, Table

LOW_CPU_QUOTA = 0.01  # Python alone takes seconds to start with less; the kernel's own limit is 0.001
HIGH_CPU_QUOTA = 1024.0  # more cores than machines have
HIGH_MEMORY_MB = 4e6  # more than machines have


@dataclass(frozen=True)
class CpuChange:
    """A new quota of one node from a moment on."""

    at_s: float  # seconds after the start
    node: str  # the node that changes
    cpu_quota: float  # cores


@dataclass(frozen=True)
class CpuRedraws:
    """Quotas drawn for every node at 0 s and again every `every_s`."""

    seed: int  # same seed, same quotas, on every machine
    every_s: float  # seconds between draws
    low_cpu_quota: float  # smallest quota, cores
    high_cpu_quota: float  # largest quota, cores


def parse_cpu_quota(table: Table, defaults: Table, redraws: CpuRedraws | None) -> float | None:
    """A node's own quota, or its default; None where neither is given. Raises InputError."""
    for given in (table, defaults):
        if "cpu_quota" in given.values and redraws is not None:
            raise given.wrong("cpu_quota", "is given although [cpu_random] draws it", "remove one of the two")
    default = _quota(defaults, "cpu_quota") if "cpu_quota" in defaults.values else None
    return _quota(table, "cpu_quota") if "cpu_quota" in table.values else default


def parse_memory_mb(table: Table, defaults: Table) -> float:
    """How much a competing process holds in the node; 0 where nothing is said. Raises InputError."""
    default_mb = defaults.number("memory_mb", 0, HIGH_MEMORY_MB, "MB", 0)
    return table.number("memory_mb", 0, HIGH_MEMORY_MB, "MB", default_mb)


def parse_cpu_random(top: Table) -> CpuRedraws | None:
    """The [cpu_random] table. Raises InputError."""
    if "cpu_random" not in top.values:
        return None
    table = top.table("cpu_random", {"seed", "every_s", "low_cpu_quota", "high_cpu_quota"})
    seed, every_s = table.seed(), table.number("every_s", 0.1, HIGH_TIME_S, "s")
    low, high = _quota(table, "low_cpu_quota"), _quota(table, "high_cpu_quota")
    if low > high:
        raise table.wrong("low_cpu_quota", f"is above high_cpu_quota ({low:g} > {high:g})", "exchange them")
    return CpuRedraws(seed, every_s, low, high)


def parse_cpu_changes(top: Table, names: list[str], redraws: CpuRedraws | None) -> tuple[CpuChange, ...]:
    """The [[cpu_changes]] by time. Raises InputError."""
    changes: list[CpuChange] = []
    for table in top.tables("cpu_changes", {"at_s", "node", "cpu_quota"}):
        at_s = table.number("at_s", 0.001, HIGH_TIME_S, "s (the starting quotas stand in [[nodes]])")
        change = CpuChange(at_s, table.member("node", names), _quota(table, "cpu_quota"))
        if redraws is not None:
            raise table.wrong("node", "changes a quota that [cpu_random] draws", "remove the change or [cpu_random]")
        if any((change.at_s, change.node) == (old.at_s, old.node) for old in changes):
            raise table.wrong("at_s", f"repeats a change at {at_s:g} s of the same node", "keep one of the two")
        changes.append(change)
    return tuple(sorted(changes, key=lambda change: change.at_s))


def _quota(table: Table, field: str) -> float:
    return table.number(field, LOW_CPU_QUOTA, HIGH_CPU_QUOTA, "cores")
