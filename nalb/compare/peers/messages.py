"""The messages between `nalb compare` and the workers of a ring: JSON frames of msgspec Structs over one ipc socket."""

from msgspec import Struct


class Joined(Struct, frozen=True, tag=True):
    """From a worker: it has met all others and waits for its turn."""


class Run(Struct, frozen=True, tag=True):
    """To all workers: run this many iterations at once."""

    iterations: int


class Iterated(Struct, frozen=True, tag=True):
    """From a worker: its part of one iteration; times in seconds on its machine's monotonic clock."""

    started_s: float  # the time when its first byte may leave
    finished_s: float  # the time when it has the sum
    iteration_s: float  # the time since the last iteration's end, or since Run for the first


class End(Struct, frozen=True, tag=True):
    """To all workers: end and leave the ring."""
