"""An emulated network that is up: where its nodes are, how to run something there, and its rates.

with network_up(load_network(path)) as emulation:
    subprocess.run(emulation.command("n0", ["ping", emulation.address("n1")]))
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from nalb.errors import InputError, MachineError, listed
from nalb.process import daemon
from netem import ballast, build, cpu_limits, delay_line, namespaces
from netem.change_clock import ChangeClock, OnChange
from netem.guardian import NetworkGuardian
from netem.network import Network
from netem.network_tables import HIGH_CPU_QUOTA, HIGH_MBPS, LOW_CPU_QUOTA, LOW_MBPS
from netem.schedule import CpuQuotas, Delays, NodeRates, Numbers, PairCaps, quotas_at
from netem.shaping import Impairments
from netem.wires import Wire, wires

log = logging.getLogger(__name__)


class Emulation:
    """A handle on a network that is up. Several threads may use it."""

    hub_address = build.HUB_ADDRESS

    def __init__(self, network: Network, limits: cpu_limits.CpuLimits | None = None):
        """`limits` keeps the CPU quotas, where the file has any; by default the best mechanism that this machine has."""
        self.network = network
        self._limits = (limits or cpu_limits.choose(network)) if network.limits_cpu else None
        self._quotas: CpuQuotas = quotas_at(network, 0.0)
        self._now = Numbers.at(network, 0.0)
        self._wires = wires(network)
        self._lock = threading.Lock()
        self._guardian: NetworkGuardian | None = None
        self._needed: list[daemon.Daemon] = []

    def address(self, node_name: str) -> str:
        """A node's IPv4 address."""
        self._require_node(node_name)
        return build.node_address(self.network, node_name)

    def namespace(self, node_name: str) -> str:
        """The name of a node's namespace."""
        self._require_node(node_name)
        return namespaces.node_namespace(self.network.name, node_name)

    def hub_namespace(self) -> str:
        """The name of the hub's namespace, which has no limit of its own beside those of the links that end there."""
        return namespaces.hub_namespace(self.network.name)

    def bridge_of(self, node_name: str) -> tuple[str, str]:
        """(namespace, address) of the bridge that a node's link leads to, its site's or the hub's. A bridge itself has no limit."""
        self._require_node(node_name)
        site = next(node.site for node in self.network.nodes if node.name == node_name)
        if site is None:
            return self.hub_namespace(), self.hub_address
        return namespaces.node_namespace(self.network.name, site), build.site_address(self.network, site)

    def ends(self, name: str) -> tuple[tuple[str, str], tuple[str, str]]:
        """(namespace, address) of the own end of a node's or site's link, and of the bridge that it leads to."""
        if name in self.network.node_names():
            return (self.namespace(name), self.address(name)), self.bridge_of(name)
        own = namespaces.node_namespace(self.network.name, name), build.site_address(self.network, name)
        return own, (self.hub_namespace(), self.hub_address)

    def impairments(self) -> dict[str, tuple[Impairments, Impairments]]:
        """The impairments of each node's and site's link now, by name: those of the way up, and of the way down."""
        with self._lock:
            each = {name: wire.egresses(self.network, self._now) for name, wire in self._wires.items()}
        return {name: (up.impairments, down.impairments) for name, (up, down) in each.items()}

    def command(self, node_name: str, argv: Sequence[str]) -> list[str]:
        """An argv that runs `argv` inside a node, within its CPU quota. It execs: pid, directory, environment, files stay."""
        inside = namespaces.inside_argv(self.namespace(node_name), argv)
        return inside if self._limits is None else self._limits.argv(node_name, inside)

    def rates(self) -> NodeRates:
        """Every node's (up_mbps, down_mbps) now."""
        with self._lock:
            return {name: self._now.rates[name] for name in self.network.node_names()}

    def site_rates(self) -> NodeRates:
        """The (up_mbps, down_mbps) of every site's own link now."""
        with self._lock:
            return {name: self._now.rates[name] for name in self.network.site_names()}

    def pair_caps(self) -> PairCaps:
        """Every capped pair's Mbit/s now."""
        with self._lock:
            return dict(self._now.caps)

    def cpu_mechanism(self) -> str | None:
        """The mechanism that keeps the CPU quotas, for people; None where the file has no quotas."""
        return None if self._limits is None else self._limits.label

    @property
    def stops_processes(self) -> bool:
        """Whether the CPU quotas are kept by stopping processes and letting them go on."""
        return self._limits is not None and self._limits.stops_processes

    def delay_shortfall(self) -> str | None:
        """Say in words for people what the delay line could not do since its start; None where it kept up or there is none."""
        if not any(wire.joint for wire in self._wires.values()):
            return None
        try:
            shortfall = delay_line.shortfall(delay_line.read_counters(self.hub_namespace()))
        except MachineError as error:
            return str(error)
        return shortfall and f"the delay line of network {self.network.name} {shortfall}"

    def describe_machines(self) -> list[str]:
        """Lines for people: the CPU quotas and their mechanism, and the memory held; [] where the file has neither."""
        lines, quotas = [], self.cpu_quotas()
        if self._limits is not None:
            words = [f"{name} {'all' if quota is None else f'{quota:g}'}" for name, quota in quotas.items()]
            lines.append(f"CPU quotas in cores: {', '.join(words)}; kept by {self._limits.label}")
        held = [f"{node.name} {node.memory_mb:g}" for node in self.network.nodes if node.memory_mb]
        return lines + ([f"held by a competing process, MB: {', '.join(held)}"] if held else [])

    def cpu_quotas(self) -> CpuQuotas:
        """Every node's CPU quota now, in cores; None for a node without one."""
        with self._lock:
            return dict(self._quotas)

    def times_stopped(self, node_name: str) -> int:
        """How often a node was stopped by its CPU quota since the start; 0 in a network without quotas."""
        self._require_node(node_name)
        return 0 if self._limits is None else self._limits.times_stopped(node_name)

    def set_cpu_quotas(self, quotas: CpuQuotas) -> None:
        """Change CPU quotas (cores; None: no limit) while processes run, and read them back. Quotas of other nodes stay.

        Raises InputError for an unknown node, a quota out of range, or a network whose file has no quotas (its processes are in
        no group); MachineError where the kernel refuses.
        """
        for name, quota in quotas.items():
            self._require_node(name)
            if quota is not None and not LOW_CPU_QUOTA <= quota <= HIGH_CPU_QUOTA:
                raise InputError(f"a CPU quota of {quota} cores: give {LOW_CPU_QUOTA:g} to {HIGH_CPU_QUOTA:g}")
        if self._limits is None:
            raise InputError(f"network {self.network.name} has no CPU quotas: give one node a cpu_quota in its file")
        with self._lock:
            self._limits.set(quotas)
            self._quotas.update(quotas)

    def check(self) -> None:
        """Raise MachineError if a process has ended without which the network is not as its file says."""
        if self._guardian is not None:
            self._guardian.check()
        for one in self._needed:
            one.check()

    def close(self) -> None:
        """End the network's processes, since the network is about to be removed.

        The removal of namespaces ends those that are in a namespace with a name. Someone may have removed a name by hand.
        """
        self._guardian = None
        while self._needed:
            self._needed.pop().end()

    def set_up(self, guardian: NetworkGuardian) -> None:
        """Build the network. If that fails, the guardian must remove what was made."""
        self._guardian = guardian
        self._needed += build.build(self.network, guardian)
        self._set_up_machines()

    def _set_up_machines(self) -> None:
        """Start the competing processes that hold memory, and set the quotas of 0 s. Called once, when the namespaces exist."""
        if self._limits is not None:
            self._needed += self._limits.start()
        for node in self.network.nodes:
            if node.memory_mb:
                argv = self.command(node.name, ballast.start_argv(node.memory_mb))
                holder = daemon.start(argv, f"the competing process of {node.name}")
                self._needed.append(holder)
                ballast.check_held(holder.said, node.memory_mb, node.name)
        if self._limits is not None:  # only after memory is held: a slow machine would fill its memory slowly
            self.set_cpu_quotas(quotas_at(self.network, 0.0))

    def set_rates(
        self,
        rates: Mapping[str, tuple[float, float]] | None = None,
        pair_caps: PairCaps | None = None,
        delays: Delays | None = None,
    ) -> None:
        """Change rates of nodes, sites and pairs, and delays of links with traces, while packets flow; read them back.

        Numbers that are not named stay as they are. Waiting packets are kept. Raises InputError for an unknown node or site, an
        undeclared pair or a rate out of range; MachineError where the kernel refuses.
        """
        rates, pair_caps, delays = dict(rates or {}), dict(pair_caps or {}), dict(delays or {})
        for pair in pair_caps:
            if pair not in self._now.caps:
                raise InputError(
                    f"network {self.network.name} has no link {pair[0]} -> {pair[1]}: declare it in the file"
                )
        for name in rates:
            if name not in self._wires:
                self._require_node(name)
        for mbps in [*pair_caps.values(), *(mbps for both in rates.values() for mbps in both)]:
            if not LOW_MBPS <= mbps <= HIGH_MBPS:
                raise InputError(f"a rate of {mbps} Mbit/s: give {LOW_MBPS:g} to {HIGH_MBPS:g}")
        with self._lock:
            before, self._now = (
                self._now,
                Numbers(self._now.rates | rates, self._now.caps | pair_caps, self._now.delays | delays),
            )
            self._apply({*rates, *delays, *(src for src, _ in pair_caps)}, before)

    def reset_rates(self) -> None:
        """Set rates, delays and CPU quotas back to the file's at 0 s."""
        with self._lock:
            self._now = Numbers.at(self.network, 0.0)
            self._apply(self._wires, None)
        if self._limits is not None:
            self.set_cpu_quotas(quotas_at(self.network, 0.0))

    def _apply(self, names: Iterable[str], before: Numbers | None) -> None:
        """Apply the present numbers of these links, but not those that are as in `before`: setting a bucket fills it."""
        for wire in (self._wires[name] for name in names):
            for way in (Wire.downlink, Wire.uplink):
                wanted = way(wire, self.network, self._now)
                if before is None or wanted != way(wire, self.network, before):
                    build.reshape(wanted)
            rules = build.rules_of(self.network, wire, self._now)
            if rules and (before is None or rules != build.rules_of(self.network, wire, before)):
                delay_line.set_rules(self.hub_namespace(), rules)

    def start_changes(self, on_change: OnChange) -> ChangeClock:
        """Start a clock that applies the file's timed changes from now on; use it as a context manager."""
        return ChangeClock(self.network, self.set_rates, on_change, set_quotas=self.set_cpu_quotas)

    def _require_node(self, name: str) -> None:
        if name not in self.network.node_names():
            raise InputError(
                f"network {self.network.name} has no node '{name}': it has {listed(self.network.node_names())}"
            )


@contextmanager
def network_up(network: Network, limits: cpu_limits.CpuLimits | None = None) -> Iterator[Emulation]:
    """Build a network, and take it down on every exit: return, exception, Ctrl-C, SIGTERM, even SIGKILL.

    Processes inside it are killed at the end. `limits`: see Emulation. Raises InputError where a network of that name is
    up, MachineError where this machine cannot give what the file says.
    """
    with NetworkGuardian(network.name) as guardian:
        try:
            emulation = _build(network, guardian, limits)
            try:
                yield emulation
            finally:
                if (shortfall := emulation.delay_shortfall()) is not None:
                    log.warning("%s", shortfall)
                emulation.close()
        finally:
            guardian.take_down()


def leave_up(network: Network) -> Emulation:
    """Build a network that outlives this process; `build.take_down` removes it. A failed build leaves nothing."""
    with NetworkGuardian(network.name) as guardian:
        try:
            emulation = _build(network, guardian, None)
            build.mark_left_up(network)
            return emulation
        except BaseException:
            guardian.take_down()
            raise


def _build(network: Network, guardian: NetworkGuardian, limits: cpu_limits.CpuLimits | None) -> Emulation:
    cpu_limits.require_cores(network)
    ballast.require(network)
    emulation = Emulation(network, limits)
    emulation.set_up(guardian)
    return emulation


def is_up(network_name: str) -> bool:
    """Whether a network of that name is up."""
    return any(map(namespaces.is_namespace, namespaces.standing(network_name)))


def attach(network: Network) -> Emulation:
    """Attach to the network that `nalb net up` left standing, and set its rates back to the file's at 0 s.

    Raises InputError where it is not up, was built from a file that differs, belongs to a command that is running, or is not whole.
    """
    hub = namespaces.hub_namespace(network.name)
    wanted = {hub, *(wire.namespace for wire in wires(network).values())}
    standing = set(filter(namespaces.is_namespace, namespaces.standing(network.name)))
    if not standing:
        raise InputError(f"network {network.name} is not up: run `nalb net up` first")
    partly = InputError(
        f"the network {network.name} that is up is not whole, as after a `nalb net down` that was cut short: run it again"
    )
    if hub not in standing:
        raise partly
    alias = build.read_alias(network)
    if alias.removesuffix(build.LEFT_UP) != build.fingerprint(network):
        raise InputError(
            f"the network {network.name} that is up was built from another file: run `nalb net down` on this one first"
        )
    if not alias.endswith(build.LEFT_UP):
        raise InputError(
            f"the network {network.name} that is up is not of `nalb net up`, and a job may run in it: end that job, rename"
            " this network, or run `nalb net down` where the network is a leftover"
        )
    if standing != wanted:
        raise partly
    emulation = Emulation(network)
    emulation.reset_rates()
    return emulation
