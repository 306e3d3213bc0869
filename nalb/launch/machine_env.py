"""What a process of the job needs from the machine that it runs on: the shim's library, the bootstrap, nalb's own place.

Everything else in its environment is the same wherever it was written down (roles.py); these paths are not, so they are
found where the process starts: by the supervisor for local processes, by the agent for those on other hosts, and by
`python -m nalb.launch.machine_env COMMAND...` where another launcher set the rest; it completes the environment and execs.
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
    """Whether ps-lite would take a variable of this name for the job's: only the job may set it.

    A shell or a login may have it for another reason, as PORT on many platforms. PS_VERBOSE only logs, so it is left.
    """
    return name == "PORT" or (name.startswith(("DMLC_", "PS_")) and name != "PS_VERBOSE")


def machine_environment(environment: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """What to add to `environment` on this machine: PYTHONPATH, and LD_PRELOAD for those that carry the shim: workers and
    servers, and with keys every process, also under scheme stock.

    `inherited` is what the process would have had; its LD_PRELOAD and PYTHONPATH are kept behind ours.
    """
    role = environment.get("DMLC_ROLE")
    if role not in ("scheduler", "server", "worker"):
        raise InputError(f"DMLC_ROLE is {role!r}: set scheduler, server or worker, see `nalb launch --print-env`")
    path = python_path(inherited.get("PYTHONPATH", ""), *([str(BOOTSTRAP)] if role == "worker" else []))
    additions = {"PYTHONPATH": path} if path or inherited.get("PYTHONPATH") else {}
    is_stock, key_file = environment.get("NALB_STOCK") == "1", environment.get(keys.VARIABLE)
    if key_file is not None:
        keys.load_keys(key_file, environment.get("NALB_NODE"))  # what is wrong with it is said here, in one line
    if key_file is not None or (role != "scheduler" and not is_stock):
        transport = environment.get("NALB_SHIM_TRANSPORT", "mxnet" if key_file is None else "pyzmq")
        if key_file is not None and transport != "pyzmq":
            raise InputError(f"NALB_SHIM_TRANSPORT={transport} has no fast CURVE: NALB_KEYS needs pyzmq")
        additions |= preload_environment(inherited, transport, forecasts=not is_stock)
    return additions


def own_path(inherited: Mapping[str, str]) -> str:
    """A PATH on which `python` is the one that runs this."""
    return os.pathsep.join([os.path.dirname(sys.executable), inherited.get("PATH", os.defpath)])


def main(argv: list[str]) -> int:
    """Complete this process's environment and become the command."""
    try:
        if not argv:
            raise InputError("no command: `python -m nalb.launch.machine_env COMMAND...`")
        for name in list(os.environ):
            if is_for_ps_lite(name) and not name.startswith("DMLC_"):  # those the other launcher has set
                del os.environ[name]
        os.environ.update(machine_environment(os.environ, os.environ))
        os.environ["PATH"] = own_path(os.environ)
        os.execvp(os.path.expanduser(argv[0]), argv)
    except NalbError as error:
        print(f"nalb: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"nalb: cannot start {argv[0]!r}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
