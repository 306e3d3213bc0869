"""A job inside an emulated network: the places of its processes, and the rates that the coordinator is told."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from nalb.events import ChangeEvent, NetworkChange
from nalb.launch.roles import Place, ProcessSpec
from nalb.launch.run_dir import append_event
from nalb.launch.supervisor import print_line
from nalb.planning.goodput import goodput_capacities
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import bound_s
from nalb.protocol import wire
from nalb.units import mbps_to_bytes_per_s
from netem.change_clock import ChangeClock
from netem.emulation import Emulation, network_up
from netem.network import Network
from netem.schedule import pair_caps_at, rates_at, site_rates_at
from netem.shaping import segments_at_once
from netem.wires import NODE_INTERFACE

PRINT_EVERY_S = 1.0  # a network change is printed at most this often
# for all processes: gloo alone takes the address of the host's name, which is on loopback here
IN_NAMESPACES = {"GLOO_SOCKET_IFNAME": NODE_INTERFACE}
NAMESPACE_PORT = 9091  # ps-lite's customary root port; all ports of a namespace are free


@contextmanager
def job_network(network: Network) -> Iterator[Emulation]:
    """Set the network up and yield its emulation, as netem's network_up does; print how its machines are kept uneven, if so."""
    with network_up(network) as emulation:
        for line in emulation.describe_machines():
            print_line(f"network {network.name}: {line}")
        yield emulation


def job_nodes(network: Network) -> list[Node]:
    """The network's nodes with their roles, in the file's order."""
    return [Node(node.name, node.is_worker, node.is_server) for node in network.nodes]


def places_in(emulation: Emulation) -> list[Place]:
    """The place of each node in the emulated network, in the file's order."""
    nodes = job_nodes(emulation.network)
    site = {node.name: node.site for node in emulation.network.nodes}
    return [
        Place(node.name, emulation.address(node.name), node.is_worker, node.is_server, site=site[node.name])
        for node in nodes
    ]


def inside(emulation: Emulation) -> Callable[[ProcessSpec], list[str]]:
    """A function that gives the command by which a job starts a process inside its node's namespace."""
    return lambda spec: emulation.command(spec.node, list(spec.argv))


def configured_message(network: Network, elapsed_s: float, nodes: Collection[str] | None = None) -> wire.Configured:
    """The network file's rates `elapsed_s` after its start, in bytes per second; of `nodes` alone, or of all where that is None."""
    rates, caps = rates_at(network, elapsed_s), pair_caps_at(network, elapsed_s)
    kept = {name: rate for name, rate in rates.items() if nodes is None or name in nodes}
    site = {node.name: node.site for node in network.nodes if node.site is not None and node.name in kept}
    uplinks = site_rates_at(network, elapsed_s)
    return wire.Configured(
        up={name: mbps_to_bytes_per_s(up) for name, (up, _) in kept.items()},
        down={name: mbps_to_bytes_per_s(down) for name, (_, down) in kept.items()},
        pairs=[(src, dst, mbps_to_bytes_per_s(mbps)) for (src, dst), mbps in caps.items() if {src, dst} <= kept.keys()],
        site=site,
        uplinks={name: (mbps_to_bytes_per_s(up), mbps_to_bytes_per_s(down)) for name, (up, down) in uplinks.items()},
    )


def configured_capacities(network: Network, elapsed_s: float, pushes_zeros: bool = True) -> Capacities:
    """The network file's rates at `elapsed_s` as a planner's capacities, in bytes per second and in the file's node order.

    They include the sites' uplinks where the nodes can sum within sites first. pushes_zeros: as of Sites.
    """
    return configured_message(network, elapsed_s).for_bound(job_nodes(network), pushes_zeros)


def configured_bound_s(network: Network, model_bytes: float, pushes_zeros: bool = True) -> float:
    """The lossless bound of one iteration, in seconds, at the rates that the network begins with. pushes_zeros: as of Sites."""
    return bound_s(job_nodes(network), model_bytes, configured_capacities(network, 0.0, pushes_zeros))


def goodput_bound_s(network: Network, model_bytes: float, pushes_zeros: bool = True) -> float:
    """configured_bound_s(), in seconds, with the rates less the share of TCP's headers and acknowledgements."""
    capacities = configured_capacities(network, 0.0, pushes_zeros)
    left = goodput_capacities(capacities, np.array(segments_at_once(network)))
    return bound_s(job_nodes(network), model_bytes, left)


class Changes:
    """A network's timed changes while a job runs: the network's clock applies them, and this class logs and reports them.

    nodes: the job's nodes, where the job runs without some of the file's nodes; None: all.
    """

    def __init__(self, network: Network, run_dir: Path, nodes: Collection[str] | None = None):
        self._network, self._path, self._nodes = network, run_dir / "samples.jsonl", nodes
        self._lock = threading.Lock()
        self._news = False
        self._start_s = 0.0
        self._clock: ChangeClock | None = None
        self._printed_s, self._unprinted = -PRINT_EVERY_S, 0

    def start(self, emulation: Emulation) -> ChangeClock:
        """Set the network to the file's rates at 0 s, start its clock and return the clock, for a with block."""
        emulation.reset_rates()
        self._start_s, self._news = time.monotonic(), True
        self._clock = emulation.start_changes(self.note_changed)
        return self._clock

    def check(self) -> None:
        """Raise the error that stopped the clock, if any: without the clock the network would not change any more."""
        if self._clock is not None:
            self._clock.check()

    def tell(self, send: Callable[[wire.Configured], None]) -> None:
        """Call check(), and send the rates if they have changed. `send` is called in the caller's thread."""
        self.check()
        with self._lock:
            news, self._news = self._news, False
        if news:
            send(configured_message(self._network, time.monotonic() - self._start_s, self._nodes))

    def note_changed(self, elapsed_s: float, what: Mapping[str, object]) -> None:
        """Take in that the clock has made a change: write it to the file of events, and print it."""
        with self._lock:
            self._news = True
            change = msgspec.convert(what, NetworkChange)
            append_event(self._path, ChangeEvent(at_s=time.monotonic(), elapsed_s=elapsed_s, change=change))
        self._print(elapsed_s, what)

    def _print(self, elapsed_s: float, what: Mapping[str, object]) -> None:
        """Print a change for people, at most once in PRINT_EVERY_S; the file of events has every change."""
        if elapsed_s - self._printed_s < PRINT_EVERY_S:
            self._unprinted += 1
            return
        more = f" (and {self._unprinted} since the last line)" if self._unprinted else ""
        print_line(f"network change at {elapsed_s:.1f} s: {dict(what)}{more}")
        self._printed_s, self._unprinted = elapsed_s, 0
