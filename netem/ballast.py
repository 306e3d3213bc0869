"""`python -m netem.ballast MB`: the competing process of a node with memory_mb. It holds the memory and does nothing."""

import signal
import sys

import psutil

from nalb.errors import MachineError
from nalb.process import daemon
from nalb.process.own_program import own_argv
from netem.network import Network

MB = 1_000_000


def require(network: Network) -> None:
    """Raise MachineError if this machine has less memory free than the network's nodes are to hold."""
    wanted_mb = sum(node.memory_mb for node in network.nodes)
    if wanted_mb * MB > (free_bytes := psutil.virtual_memory().available):
        raise MachineError(
            f"network {network.name} holds {wanted_mb:g} MB (memory_mb) where {free_bytes // MB} MB are free:"
            " lower memory_mb"
        )


def start_argv(memory_mb: float) -> list[str]:
    """The command that holds the memory, to be run in the node."""
    return own_argv("netem.ballast", str(memory_mb))


def check_held(said: str, memory_mb: float, node_name: str) -> None:
    """Raise MachineError if the ballast holds less than it should. `said` is the resident memory in MB that it has printed."""
    if float(said) < memory_mb:
        raise MachineError(
            f"{node_name}: the competing process holds {said} MB where {memory_mb:g} were asked: lower memory_mb"
        )


def main(argv: list[str]) -> int:
    """Fill the memory, go to the background, and wait to be killed."""
    held = bytearray(b"\1") * int(float(argv[0]) * MB)  # written, so that each page takes memory
    daemon.detach(f"{psutil.Process().memory_info().rss / MB:.1f}")
    while held:
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
