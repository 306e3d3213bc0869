"""Libraries that only some commands need. An extra of nalb brings each one; where it is missing, one line says what to install."""

import importlib.util
import re
import sys

from nalb.errors import MachineError

EXTRA_OF = {
    "mxnet": "mxnet",
    "statsmodels": "arima",
    "torch": "peers",
    "prometheus_client": "metrics",
    "tensorboardX": "tensorboard",
}  # by library; pyproject.toml has the reasons
PYTHON_OF_MXNET = (3, 11)  # kvstore_patch is made for it


def how_to_install(extra: str) -> str:
    """Say how nalb is installed with an extra: from its folder, since no package registry has it."""
    return f"pip install -e '.[{extra}]' in nalb's folder"


INSTALL = {"mxnet": how_to_install("mxnet"), "torch": "pip install torch"}  # by framework
_MISSING = re.compile(rf"ModuleNotFoundError: No module named '({'|'.join(INSTALL)})'")


def remedy(framework: str) -> str:
    """What to do about a Python that has no such framework."""
    return f"{INSTALL[framework]} there, or name another Python"


def remedy_of(line: str) -> str:
    """What to do, to append to a process's last line, where this says that its Python has no framework; else empty."""
    found = _MISSING.fullmatch(line)
    return f": {remedy(found[1])}" if found else ""


def require(library: str, who: str, otherwise: str = "") -> None:
    """MachineError where the library is not installed. who: what needs it. otherwise: what else the user can do."""
    if importlib.util.find_spec(library) is None:
        extra = EXTRA_OF[library]
        raise MachineError(f"{who} needs the extra {extra} ({library}): {how_to_install(extra)}{otherwise}")


def require_mxnet(who: str, python: tuple[int, int] = sys.version_info[:2]) -> None:
    """MachineError where MXNet is not installed, or cannot be because this is another Python than MXNet's."""
    if python != PYTHON_OF_MXNET:
        here, there = (".".join(map(str, version)) for version in (python, PYTHON_OF_MXNET))
        raise MachineError(
            f"{who} needs the extra mxnet, which is for Python {there}, and this is {here}: make an environment with "
            f"python{there}, and there {how_to_install('mxnet')}"
        )
    require("mxnet", who)
