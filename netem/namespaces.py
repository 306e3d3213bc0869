"""Makes, enters, empties and removes network namespaces by name.

`nalb-NETWORK` is the hub's namespace, `nalb-NETWORK.NAME` that of a node or a site. Names in network files have no dot, so a
namespace belongs to one network alone.

Work inside a namespace is done by a thread that enters it, does the work and ends (`inside`). Sockets opened there stay there,
nothing is forked, and no thread of the caller's ever changes its namespace. An interrupt waits for that thread, so that the
caller can clean up all that the thread makes.
"""

import ctypes
import errno
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

from pyroute2 import IPRoute, netns

from nalb.errors import MachineError
from nalb.process import proc
from nalb.process.exhaustion import explained
from netem.rootless import IN_CONTAINER

T = TypeVar("T")

PREFIX = "nalb-"
KILL_DEADLINE_S = 5.0  # a killed process is gone in milliseconds, unless it is stuck in the kernel
INTERRUPTED_S = 5.0  # an interrupt waits so long for a thread, which works for milliseconds unless it waits for packets
TRY_S = 3.5  # one try of a connection: the kernel asks for the neighbour's address for 3 s
PAUSE_S = 0.1  # between two tries
ENTER_S = 0.05  # after so long a process that was about to enter a removed namespace has entered it


def hub_namespace(network_name: str) -> str:
    """The name of the namespace that holds a network's bridge."""
    return f"{PREFIX}{network_name}"


def node_namespace(network_name: str, name: str) -> str:
    """The name of a node's or site's namespace; no site has a node's name."""
    return f"{PREFIX}{network_name}.{name}"


def path_of(namespace: str) -> Path:
    """The file that stands for a namespace."""
    return Path(netns.NETNS_RUN_DIR) / namespace


def standing(network_name: str) -> list[str]:
    """The namespaces of a network that exist, nodes and sites first and the hub last; also files of namespaces that are gone."""
    hub = hub_namespace(network_name)
    names = [name for name in netns.listnetns() if name == hub or name.startswith(f"{hub}.")]
    return sorted(names, key=lambda name: (name == hub, name))


def networks() -> dict[str, list[str]]:
    """The networks that have a namespace, each with the names of its nodes and sites. One without a hub is a leftover."""
    found: dict[str, list[str]] = {}
    for name in sorted(netns.listnetns()):
        if name.startswith(PREFIX) and is_namespace(name):
            network, _, node = name.removeprefix(PREFIX).partition(".")
            found.setdefault(network, []).extend([node] * bool(node))
    return found


def is_namespace(name: str) -> bool:
    """Whether a namespace is mounted on the file of that name. Of one that another mount namespace made, a plain file is seen."""
    found, own = identity(name), _namespace_file_identity(Path("/proc/self/ns/net"))
    return found is not None and own is not None and found[0] == own[0]


def identity(namespace: str) -> tuple[int, int] | None:
    """The (device, inode) that tells this namespace from a later one of the same name; None where there is none."""
    return _namespace_file_identity(path_of(namespace))


def create(namespace: str, naming: AbstractContextManager[None] | None = None) -> None:
    """Make a namespace. Raises FileExistsError where the name is taken, MachineError where the kernel refuses.

    A thread takes the name inside the context `naming`, so no interrupt comes between the two.
    """

    def name() -> None:
        with naming or nullcontext():
            netns.attach(namespace, "thread-self")

    try:  # netns.create would fork, and after an interrupt the child would go on
        _in_thread(f"making {namespace}", _enter_new, name)
    except FileExistsError:
        raise
    except OSError as error:
        is_denied = error.errno == errno.EACCES  # as AppArmor denies a container's mounts
        remedy = IN_CONTAINER if is_denied else "run as root on a kernel with network namespaces"
        raise MachineError(f"namespace {namespace} cannot be made ({error}): {remedy}") from error


def require_tool() -> None:
    """Check that this machine has a tool for `inside_argv`. Raises MachineError."""
    inside_argv("", [])


def inside_argv(namespace: str, argv: Sequence[str]) -> list[str]:
    """An argv that enters a namespace and execs `argv`. Raises MachineError where this machine has no tool for it."""
    if shutil.which("nsenter"):
        return ["nsenter", f"--net={path_of(namespace)}", "--", *argv]
    if shutil.which("ip"):
        return ["ip", "netns", "exec", namespace, *argv]
    raise MachineError("neither nsenter nor ip is installed: install util-linux")


def identity_of_process(pid: int) -> tuple[int, int] | None:
    """The identity of the namespace that a process is in; None where the process has ended."""
    return _namespace_file_identity(Path(f"/proc/{pid}/ns/net"))


def processes_by_namespace(namespaces: Sequence[str]) -> dict[str, list[int]]:
    """The pids in each namespace, without this process and without zombies."""
    inside: dict[str, list[int]] = {name: [] for name in namespaces}
    for name, pid in _processes_in(_identities(namespaces)):
        inside[name].append(pid)
    return inside


def kill_inside(namespaces: Sequence[str]) -> None:
    """Kill all processes in the namespaces. Raises MachineError when one does not die within KILL_DEADLINE_S."""
    _empty(_identities(namespaces))


def remove(namespaces: Iterable[str]) -> None:
    """Kill all processes in the namespaces and remove the namespaces. Names that do not exist are passed over.

    Raises MachineError when a process does not die within KILL_DEADLINE_S, or where the kernel refuses.
    """
    names = list(namespaces)
    found = _identities(names)
    _empty(found)
    for name in names:
        try:
            netns.remove(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise MachineError(
                f"namespace {name} cannot be removed ({error.strerror}): run `nalb net down` as the root that built it"
            ) from error
    if found:
        time.sleep(ENTER_S)
        _empty(found)


def _identities(names: Sequence[str]) -> dict[tuple[int, int], str]:
    return {found: name for name in names if (found := identity(name)) is not None}


def _processes_in(names: dict[tuple[int, int], str]) -> list[tuple[str, int]]:
    places = [(names.get(identity_of_process(pid) or (0, 0)), pid) for pid in proc.others()]
    return [(name, pid) for name, pid in places if name is not None]


def _empty(names: dict[tuple[int, int], str]) -> None:
    deadline_s = time.monotonic() + KILL_DEADLINE_S
    while inside := _processes_in(names):
        if time.monotonic() > deadline_s:
            raise MachineError(
                f"processes in namespaces do not die: {inside}; end them, then run `nalb net down` again"
            )
        for _, pid in inside:
            _kill(pid)
        time.sleep(0.01)


def inside(namespace: str, function: Callable[[], T]) -> T:
    """Call function() in a thread that has entered the namespace; return its result or raise its error.

    Raises MachineError where there is no such namespace.
    """

    def enter() -> None:
        try:
            netns.setns(namespace, flags=0)
        except FileNotFoundError:
            raise MachineError(
                f"namespace {namespace} is gone, removed while in use: run `nalb net down` and start again"
            ) from None

    return _in_thread(f"inside {namespace}", enter, function)


def inside_scratch(function: Callable[[], T]) -> T:
    """Call function() in a namespace without a name, which ends with its thread, so nothing is left to remove."""
    return _in_thread("inside a scratch namespace", _enter_new, function)


def connect(namespace: str, address: tuple[str, int], deadline_s: float) -> socket.socket:
    """Connect from inside a namespace by TCP, and try again until the deadline: the network may lose packets on purpose.

    Raises OSError.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        try:
            return inside(namespace, lambda: socket.create_connection(address, TRY_S))
        except OSError:
            if time.monotonic() + PAUSE_S > end_s:
                raise
            time.sleep(PAUSE_S)


def with_netlink(namespace: str, function: Callable[[IPRoute], T]) -> T:
    """Call function(netlink) inside the namespace, and close the netlink socket afterwards."""

    def call() -> T:
        with IPRoute() as netlink:
            return function(netlink)

    return inside(namespace, call)


def _enter_new() -> None:
    """Make a namespace without a name, which the calling thread enters. Raises MachineError."""
    if ctypes.CDLL(None, use_errno=True).unshare(netns.CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        remedy = "raise sysctl user.max_net_namespaces" if number == errno.ENOSPC else "run as root"
        raise MachineError(f"a network namespace cannot be made ({os.strerror(number)}): {remedy}")


def _in_thread(name: str, enter: Callable[[], None], function: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []
    ended = threading.Event()  # used instead of join(), which takes the thread for ended once it was interrupted

    def run() -> None:
        try:
            enter()
            results.append(function())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        with explained(f"a thread {name}"):
            thread.start()
        ended.wait()
    except KeyboardInterrupt:
        ended.wait(INTERRUPTED_S)
        raise
    if errors:
        raise errors[0]
    return results[0]


def _namespace_file_identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None  # the file is not there, or the process has ended
    return status.st_dev, status.st_ino


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
