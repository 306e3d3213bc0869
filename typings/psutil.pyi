"""What nalb uses of psutil, which has no types of its own. mypy alone reads this file."""

from typing import NamedTuple

class _Memory(NamedTuple):
    available: int
    percent: float

class _Times(NamedTuple):
    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    irq: float
    softirq: float
    steal: float

class _Address(NamedTuple):
    family: int
    address: str

class _ProcessMemory(NamedTuple):
    rss: int
    vms: int

class _ProcessTimes(NamedTuple):
    user: float
    system: float

class _Switches(NamedTuple):
    voluntary: int
    involuntary: int

class Process:
    def __init__(self, pid: int | None = None) -> None: ...
    def cpu_affinity(self) -> list[int]: ...
    def cpu_times(self) -> _ProcessTimes: ...
    def memory_info(self) -> _ProcessMemory: ...
    def num_ctx_switches(self) -> _Switches: ...
    def num_fds(self) -> int: ...
    def num_threads(self) -> int: ...
    def status(self) -> str: ...

class Error(Exception): ...
class NoSuchProcess(Error): ...

STATUS_STOPPED: str

def cpu_times() -> _Times: ...
def net_if_addrs() -> dict[str, list[_Address]]: ...
def pids() -> list[int]: ...
def virtual_memory() -> _Memory: ...
