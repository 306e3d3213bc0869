"""What `nalb compare` and the workers of a ring tell each other: JSON frames of msgspec Structs over one ipc socket."""

from msgspec import Struct


class Joined(Struct, frozen=True, tag=True):
    """A worker has met all others and waits for its turn."""


class Run(Struct, frozen=True, tag=True):
    """To all workers: so many iterations, at once."""

    iterations: int


class Iterated(Struct, frozen=True, tag=True):
    """A worker's part of one iteration; times in seconds on its machine's monotonic clock."""

    started_s: float  # its first byte may leave
    finished_s: float  # the sum is there
    iteration_s: float  # since the last iteration's end, or since Run


class End(Struct, frozen=True, tag=True):
    """To all workers: leave."""
