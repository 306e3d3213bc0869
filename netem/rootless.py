"""Namespaces without root: the command starts again inside a user namespace of its own, where it is root.

Only that command and its children see the namespaces that are built there, which vanish with the last of these processes. So
this serves commands that build, use and remove a network. `nalb net up` needs the real root, since its network outlives it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from nalb.errors import MachineError
from nalb.process.exhaustion import explained

MARK = "NALB_ROOTLESS"  # set for the second start, so that there is no third
CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21
NS_GET_USERNS = 0xB701  # linux/nsfs.h: the user namespace that owns a namespace
UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")
MOUNT = ("mount", "-t", "tmpfs", "tmpfs")
# The trial mounts, since AppArmor may let the namespaces be made and then take away the capabilities.
TRIAL = (*UNSHARE, *MOUNT, "/run")
REMEDY = (
    "run it as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 where that exists,"
    " sysctl user.max_user_namespaces above 0, sysctl kernel.apparmor_restrict_unprivileged_userns=0 where that exists"
)
IN_CONTAINER = "if this is a container, start it with --privileged"


def has_privilege() -> bool:
    """Whether this process may make namespaces, shape them, and mount them on files."""
    if not _may_mount():
        return False
    for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            capabilities = int(line.split()[1], 16)
            return all(capabilities >> capability & 1 for capability in (CAP_NET_ADMIN, CAP_SYS_ADMIN))
    return False


def _may_mount() -> bool:
    """Whether capabilities reach this process's mounts: not so in a user namespace without its own, as of `unshare -Ur`."""
    try:
        with open("/proc/self/ns/mnt", "rb") as mounts:
            os.close(fcntl.ioctl(mounts, NS_GET_USERNS))
    except PermissionError:  # the owner is outside of this process's user namespace
        return False
    except OSError:  # the kernel does not tell, so capabilities alone decide
        return True
    return True


def require_root(what: str) -> None:
    """Raise MachineError without root, which the command `what` needs since its namespaces outlive it."""
    if not has_privilege() or MARK in os.environ:
        raise MachineError(
            f"{what} needs root, since its namespaces outlive the command: run it as root;"
            " `nalb launch`, `nalb compare` and `nalb net verify` do without, and build the network themselves"
        )


def ensure_privilege() -> None:
    """Return where this process may make namespaces; otherwise run its command again inside a user namespace.

    The command starts again from its beginning, so call this before it does anything, and before it reads a file, which may be a
    pipe. Raises MachineError where this process may not make namespaces in either way.
    """
    if os.environ.get(MARK) == str(os.getpid()):
        prepare()
        return
    if has_privilege():
        return
    if MARK in os.environ:
        raise MachineError(f"no right to make network namespaces: {REMEDY}")
    if shutil.which(UNSHARE[0]) is None:
        raise MachineError("no root, and no `unshare` to do without: run it as root, or install util-linux")
    with explained(UNSHARE[0]):
        trial = subprocess.run(TRIAL, capture_output=True, text=True, check=False)
    if trial.returncode != 0 and os.geteuid() == 0:
        raise MachineError(f"root may not make network namespaces here: {IN_CONTAINER}")
    if trial.returncode != 0:
        why = " ".join(trial.stderr.split())
        raise MachineError(f"no root, and no user namespace in which to mount ({why}): {REMEDY}")
    command = [sys.executable, *sys.orig_argv[1:]]
    sys.stdout.flush()
    sys.stderr.flush()
    home = os.path.expanduser("~")  # of this user, which the user namespace's root is not
    os.execvpe(UNSHARE[0], [*UNSHARE, "--", *command], {"HOME": home, **os.environ, MARK: str(os.getpid())})


def _require_unused(place: Path, remedy: str) -> None:
    """Raise MachineError if the command or its job uses a file below `place`, which is about to be hidden."""
    used = {word: word for word in (os.getcwd(), sys.prefix, __file__)}
    used |= {word: word.rpartition("=")[2] for word in sys.argv}
    used |= {
        f"{name}={value}": value for name, value in os.environ.items() if name == "TMPDIR" or name.startswith("NALB_")
    }
    for word, path in used.items():
        if Path(os.path.realpath(path)).is_relative_to(place):
            raise MachineError(f"{word} lies below {place}, which is hidden without root: {remedy}")


def prepare() -> None:
    """Mount a private place for namespace files, and bring the loopback up."""
    from pyroute2 import IPRoute, netns

    directory = Path(netns.NETNS_RUN_DIR)
    place = directory if directory.is_dir() else Path("/run")
    if place != directory:
        _require_unused(place, f"name another place, or make {directory} as root")
    with explained(MOUNT[0]):
        mounted = subprocess.run([*MOUNT, place], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        raise MachineError(f"tmpfs cannot be mounted on {place} ({' '.join(mounted.stderr.split())}): {REMEDY}")
    directory.mkdir(exist_ok=True)
    with IPRoute() as netlink:
        netlink.link("set", index=netlink.link_lookup(ifname="lo")[0], state="up")
