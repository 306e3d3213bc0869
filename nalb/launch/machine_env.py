"""Finds what a process of the job needs from its machine: the shim's library, the bootstrap, and nalb's own directory.

These paths differ between machines; roles.py sets the rest of the environment, which holds on any machine. So the paths are
found where the process starts: the supervisor finds them for local processes and the agent for those on other hosts. Where
another launcher has set the rest, `python -m nalb.launch.machine_env COMMAND...` completes the environment and execs.
"""

import os
import sys
from collections.abc import Mapping

from kvstore_patch.shim import preload_environment
from nalb.errors import InputError, NalbError
from nalb.process.own_program import ROOT, python_path
from nalb.transport import keys

BOOTSTRAP = ROOT / "kvstore_patch" / "bootstrap"


def is_for_ps_lite(name: str) -> bool:
    """Whether ps-lite reads a variable of this name, so that only the job may set it.

    A shell or a login may set such a variable for another purpose: many platforms set PORT. PS_VERBOSE only adds log
    lines, so the user may set it.
    """
    return name == "PORT" or (name.startswith(("DMLC_", "PS_")) and name != "PS_VERBOSE")


def machine_environment(environment: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables that this machine adds to a process's `environment`: PYTHONPATH, and LD_PRELOAD for a process with the shim.

    MXNet's processes carry the shim, but not under scheme stock; with keys they carry it under stock too.
    A process with PyTorch's RANK or WORLD_SIZE and without MXNet's DMLC_ROLE needs nothing but nalb itself.
    `inherited` is the environment that the process would have had; its LD_PRELOAD and PYTHONPATH are kept behind nalb's.
    Raises InputError for an unknown role, for bad keys, and for a transport that cannot encrypt.
    """
    role, key_file = environment.get("DMLC_ROLE"), environment.get(keys.VARIABLE)
    if key_file is not None:
        keys.load_keys(key_file, environment.get("NALB_NODE"))  # a bad key file is an error of one line here
    if role is None and {"RANK", "WORLD_SIZE"} & environment.keys():
        path = python_path(inherited.get("PYTHONPATH", ""))
        return {"PYTHONPATH": path} if path or inherited.get("PYTHONPATH") else {}
    if role not in ("scheduler", "server", "worker"):
        raise InputError(f"DMLC_ROLE is {role!r}: set scheduler, server or worker, see `nalb launch --print-env`")
    path = python_path(inherited.get("PYTHONPATH", ""), *([str(BOOTSTRAP)] if role == "worker" else []))
    additions = {"PYTHONPATH": path} if path or inherited.get("PYTHONPATH") else {}
    is_stock = environment.get("NALB_STOCK") == "1"
    if key_file is not None or not is_stock:
        transport = environment.get("NALB_SHIM_TRANSPORT", "mxnet" if key_file is None else "pyzmq")
        if key_file is not None and transport != "pyzmq":
            raise InputError(f"NALB_SHIM_TRANSPORT={transport} has no fast CURVE: NALB_KEYS needs pyzmq")
        additions |= preload_environment(inherited, transport, forecasts=not is_stock)
    return additions


def own_path(inherited: Mapping[str, str]) -> str:
    """The inherited PATH, with the directory of the running interpreter in front, so that `python` means this interpreter."""
    return os.pathsep.join([os.path.dirname(sys.executable), inherited.get("PATH", os.defpath)])


def program_of(word: str) -> str:
    """The program that a command's first word names. A host may have no program called `python`, or another one."""
    return sys.executable if word == "python" else os.path.expanduser(word)


def main(argv: list[str]) -> int:
    """Complete this process's environment and become the command `argv`; returns an exit code only where that fails."""
    try:
        if not argv:
            raise InputError("no command: `python -m nalb.launch.machine_env COMMAND...`")
        for name in list(os.environ):
            if is_for_ps_lite(name) and not name.startswith("DMLC_"):  # the other launcher has set those with DMLC_
                del os.environ[name]
        os.environ.update(machine_environment(os.environ, os.environ))
        os.environ["PATH"] = own_path(os.environ)
        program = program_of(argv[0])
        os.execvp(program, [program, *argv[1:]])  # Python finds its packages by its first argument
    except NalbError as error:
        print(f"nalb: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"nalb: cannot start {argv[0]!r}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
