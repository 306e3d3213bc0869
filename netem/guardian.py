"""The process that removes a network if its owner dies without removing it, even by SIGKILL.

The owner holds the write end of a pipe and writes a line at each step: `making` before it makes the hub, `made DEVICE INODE`
afterwards, `done` when nothing is left to remove. If the pipe ends without `done`, the guardian removes the network, provided
that the hub is still the owner's. The hub's inode tells: owner and guardian hold the hub open, so the kernel gives a later
network of the same name another inode. The guardian runs in a session of its own, so Ctrl-C does not reach it. The write end
closes on exec, so that the owner's other children do not hold it.
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
    """The owner's side of the guardian: a context manager around the life of a network."""

    def __init__(self, network_name: str):
        self._name = network_name
        self._is_making = False  # the owner is making the hub, or has made it
        self._identity: tuple[int, int] | None = None
        self._taken_down = False
        self._held: int | None = None  # descriptor of the hub, which keeps its inode taken

    def __enter__(self) -> "NetworkGuardian":
        from netem import namespaces

        self._hub = namespaces.path_of(namespaces.hub_namespace(self._name))
        self._guardian = daemon.Guardian(
            own_argv("netem.guardian", self._name, str(self._hub)), "the network's guardian"
        )
        return self

    def check(self) -> None:
        """Start a new guardian if this one has died; see daemon.Guardian.check. Raises MachineError."""
        self._guardian.check()

    @contextmanager
    def making_hub(self) -> Iterator[None]:
        """A context in which the owner makes the hub. A FileExistsError in it means that another owner took the name."""
        self._is_making = True
        self._say("making")
        try:
            yield
        except FileExistsError:
            self._is_making = False
            self._say("done")
            raise

    def hub_is_made(self) -> None:
        """Hold the hub, and tell the guardian that the network of that name is the owner's from now on."""
        self._held = os.open(self._hub, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._held)
        self._identity = status.st_dev, status.st_ino
        self._say(f"made {self._identity[0]} {self._identity[1]}")

    def take_down(self) -> None:
        """Remove the owner's network, and no other of that name."""
        from netem import namespaces

        made = namespaces.identity(self._hub.name) if self._is_making else None  # interrupted or failed half way
        _take_down_if_ours(self._name, self._identity or made)
        self._taken_down = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Dismiss the guardian. An owner that fails calls take_down before; if that is interrupted, the guardian does the rest."""
        if self._held is not None:
            os.close(self._held)
        is_done = kind is None or self._taken_down
        if is_done:
            self._say("done")
        self._guardian.dismiss(RELEASE_DEADLINE_S if is_done else None)

    def _say(self, line: str) -> None:
        self._guardian.say(f"{line}\n".encode())


def _take_down_if_ours(name: str, ours: tuple[int, int] | None) -> None:
    from netem import build, cgroups, namespaces  # half a second of imports, which a waiting guardian does without

    if ours is None:
        return
    standing = namespaces.standing(name)
    found = namespaces.identity(namespaces.hub_namespace(name))
    # A file on another device is no namespace: only the hub's name is left of the network.
    if found is not None and (found == ours or found[0] != ours[0]):
        build.take_down(name)
    elif found is None:  # someone removed the hub; a network of this name has one from its first to its last moment
        namespaces.remove(standing)
    cgroups.remove(cgroups.standing(name, ours[1]))  # these remain if someone removed the hub by hand


def main(argv: list[str]) -> int:
    """Read the owner's lines until it ends, and remove the network if the last line is not `done`."""
    name, hub, last = *argv, ["done"]
    for line in sys.stdin:
        last = line.split()
        if last[0] == "made":
            with suppress(FileNotFoundError):  # the hub is gone already: the owner finds out
                os.open(hub, os.O_RDONLY | os.O_CLOEXEC)  # never closed: this process ends soon after the owner
    if last[0] == "made":
        _take_down_if_ours(name, (int(last[1]), int(last[2])))
    elif last[0] == "making":  # the owner died before `made`: at most an empty hub is there
        from netem import namespaces

        _take_down_if_ours(name, namespaces.identity(namespaces.hub_namespace(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
