"""The process that takes a network down when its owner dies without doing so, even by SIGKILL.

The owner holds the write end of a pipe and says a line at each step: `making` before it makes the hub, `made DEVICE
INODE` after, `done` when nothing is left to do. At the pipe's end without `done` the guardian removes the network,
if the hub is still the owner's: a later network of the same name has another inode, which the kernel sees to as long as
owner and guardian hold the hub open. It runs in a session of its own, so Ctrl-C passes it by. The write end closes on exec,
so that the owner's other children do not hold it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from nalb.process import daemon
from nalb.process.own_program import own_argv

RELEASE_DEADLINE_S = 30.0


class NetworkGuardian:
    """The owner's side: a context manager around the life of a network."""

    def __init__(self, network_name: str):
        self._name = network_name
        self._is_making = False  # the hub may be there, and is the owner's
        self._identity: tuple[int, int] | None = None
        self._taken_down = False
        self._held: int | None = None  # the hub, open

    def __enter__(self) -> "NetworkGuardian":
        from netem import namespaces

        self._hub = namespaces.path_of(namespaces.hub_namespace(self._name))
        self._guardian = daemon.Guardian(
            own_argv("netem.guardian", self._name, str(self._hub)), "the network's guardian"
        )
        return self

    def check(self) -> None:
        """As daemon.Guardian's."""
        self._guardian.check()

    @contextmanager
    def making_hub(self) -> Iterator[None]:
        """The name is free, and about to be taken; at a FileExistsError another has been faster."""
        self._is_making = True
        self._say("making")
        try:
            yield
        except FileExistsError:
            self._is_making = False
            self._say("done")
            raise

    def hub_is_made(self) -> None:
        """From now on the network of that name is the owner's."""
        self._held = os.open(self._hub, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._held)
        self._identity = status.st_dev, status.st_ino
        self._say(f"made {self._identity[0]} {self._identity[1]}")

    def take_down(self) -> None:
        """Remove the owner's network, and no other of that name."""
        from netem import namespaces

        made = namespaces.identity(self._hub.name) if self._is_making else None  # interrupted, or failed half way
        _take_down_if_ours(self._name, self._identity or made)
        self._taken_down = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Dismiss the guardian. An owner that failed calls take_down first; one interrupted in it leaves it the rest."""
        if self._held is not None:
            os.close(self._held)
        if kind is None or self._taken_down:
            self._say("done")
        self._guardian.dismiss(RELEASE_DEADLINE_S)

    def _say(self, line: str) -> None:
        self._guardian.say(f"{line}\n".encode())


def _take_down_if_ours(name: str, ours: tuple[int, int] | None) -> None:
    from netem import build, cgroups, namespaces  # half a second of imports, which a waiting guardian does without

    if ours is None:
        return
    found = namespaces.identity(namespaces.hub_namespace(name))
    # A file on another device is no namespace any more: only the hub's name is left.
    if found is not None and (found == ours or found[0] != ours[0]):
        build.take_down(name)
    cgroups.remove(cgroups.standing(name, ours[1]))  # where the hub was removed by hand, they are still there


def main(argv: list[str]) -> int:
    """Wait for the owner's end."""
    name, hub, last = *argv, ["done"]
    for line in sys.stdin:
        last = line.split()
        if last[0] == "made":
            with suppress(FileNotFoundError):  # gone already: the owner finds out
                os.open(hub, os.O_RDONLY | os.O_CLOEXEC)  # for good: this process ends soon after
    if last[0] == "made":
        _take_down_if_ours(name, (int(last[1]), int(last[2])))
    elif last[0] == "making":  # it died between the two: at most an empty hub is there
        from netem import namespaces

        _take_down_if_ours(name, namespaces.identity(namespaces.hub_namespace(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
