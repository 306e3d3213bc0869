"""`nalb net up|verify|down NETWORK` and `nalb net status`: handle emulated networks by hand. Jobs build their own.

`nalb net random` prints a network file for any of these commands; `nalb net trace` prints a trace that a link can follow.
"""

import argparse
import os
import shlex
import sys

from nalb.errors import InputError, as_text, listed
from nalb.simulation.families import FAMILIES, draw_network, network_text
from nalb.units import GOODPUT_PART
from netem import build, emulation, namespaces, rootless, trace_families, verify, verify_cpu, verify_delay
from netem.network import Network
from netem.network_file import find_network, load_network


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, help_text in (
        ("up", "build the network and leave it standing"),
        ("verify", "measure every node, capped pair and site against the file; builds the network if it is not up"),
        ("down", "remove the network and whatever runs in it"),
    ):
        action = actions.add_parser(name, help=help_text, description=help_text)
        named = "a network file, or the name of a carried one (wan4-static)"
        if name == "down":
            named += ", or of one that is up (`nalb net status`)"
        action.add_argument("file", metavar="NETWORK", help=named)
    help_text = "say which networks are up"
    actions.add_parser("status", help=help_text, description=help_text)
    random_help = "print a network file of a family, drawn by a seed"
    action = actions.add_parser("random", help=random_help, description=random_help)
    action.add_argument("--family", required=True, metavar="F", help=f"one of {', '.join(FAMILIES)}")
    action.add_argument("--nodes", required=True, type=int, metavar="N", help="how many nodes")
    action.add_argument("--seed", required=True, type=int, metavar="S", help="same seed, same file, on every machine")
    action.add_argument("--scale", type=float, default=1.0, metavar="X", help="factor of all rates (default: 1)")
    action.add_argument(
        "--cores", type=float, metavar="C", help="of shared-cores: shared by all (default: this machine's)"
    )

    trace_help = "print a trace of rates, drawn by a seed"
    action = actions.add_parser("trace", help=trace_help, description=trace_help)
    action.add_argument("--family", required=True, metavar="F", help=f"one of {', '.join(trace_families.FAMILIES)}")
    action.add_argument("--seed", required=True, type=int, metavar="S", help="same seed, same trace, on every machine")
    action.add_argument("--seconds", required=True, type=float, metavar="T", help="the length of a round")
    action.add_argument("--low", required=True, type=float, metavar="MBPS", help="the lowest rate")
    action.add_argument("--high", required=True, type=float, metavar="MBPS", help="the highest rate")


def main(args: argparse.Namespace) -> int:
    """Run the chosen action; returns the exit code. Raises NalbError."""
    if args.action == "random":
        return _random(args)
    if args.action == "trace":
        sys.stdout.write(trace_families.trace_text(args.family, args.seed, args.seconds, args.low, args.high))
        return 0
    if args.action == "status":
        return _status()
    if args.action == "down":
        return _down(_name_to_remove(args.file))
    if args.action == "verify":
        rootless.ensure_privilege()
    network = load_network(find_network(args.file))
    return {"up": _up, "verify": _verify}[args.action](network, args.file)


def _random(args: argparse.Namespace) -> int:
    if args.cores is not None and args.family != "shared-cores":
        raise InputError(f"--cores {args.cores:g} is of family shared-cores alone: leave it out")
    cores = float(len(os.sched_getaffinity(0))) if args.cores is None else args.cores
    sys.stdout.write(network_text(draw_network(args.family, args.nodes, args.seed, args.scale, cores)))
    return 0


def _status() -> int:
    found = namespaces.networks()
    for name, nodes in found.items():
        if namespaces.is_namespace(namespaces.hub_namespace(name)):
            print(f"network {name} is up: {listed(nodes)}")
        else:
            print(
                f"network {name} is not whole: its hub is gone, and left are {listed(nodes)}; run `nalb net down {name}`"
            )
    if not found:
        print("no network is up")
    return 0


def _up(network: Network, file: str) -> int:
    rootless.require_root("nalb net up")
    standing = emulation.leave_up(network)
    print(as_text(f"network {network.name} is up; `nalb net down {shlex.quote(file)}` removes it"))
    print(f"{'node':<16}{'address':<16}{'up Mbit/s':>12}{'down Mbit/s':>13}")
    for name, (up_mbps, down_mbps) in standing.rates().items():
        print(f"{name:<16}{standing.address(name):<16}{up_mbps:>12g}{down_mbps:>13g}")
    for site, (up_mbps, down_mbps) in zip(network.sites, standing.site_rates().values(), strict=True):
        delayed = f", {site.delay_ms:g} ms each way" if site.delay_ms else ""
        lost = f", {site.loss_percent:g} % lost" if site.loss_percent else ""
        rates = f"{up_mbps:g} Mbit/s up and {down_mbps:g} down{delayed}{lost}"
        print(f"site {site.name}: {rates}; shared by {', '.join(network.members(site.name))}")
    for (src, dst), mbps in standing.pair_caps().items():
        print(f"{src} -> {dst}: at most {mbps:g} Mbit/s")
    for line in standing.describe_machines():
        print(line)
    print(f"run a command in a node: {shlex.join(standing.command(network.nodes[0].name, ['COMMAND']))}")
    return 0


def _verify(network: Network, _file: str) -> int:
    if emulation.is_up(network.name):
        return _measure(emulation.attach(network))
    with emulation.network_up(network) as standing:
        return _measure(standing)


def _measure(standing: emulation.Emulation) -> int:
    """Measure the network and print each measurement as it comes. Returns 1 where one is off by more than the tolerance."""
    header = f"{'what':<24}{'configured':>12}{'measured':>12}{'goodput':>12}{'off by':>9}"
    print(f"{header}   (Mbit/s; measured = goodput / {GOODPUT_PART:.3f}, its headers)", flush=True)

    def show(measurement: verify.Measurement) -> None:
        numbers = (
            f"{measurement.configured_mbps:>12.2f}{measurement.measured_mbps:>12.2f}{measurement.goodput_mbps:>12.2f}"
        )
        verdict = "" if measurement.passed else "   WRONG"
        print(f"{measurement.label:<24}{numbers}{measurement.deviation:>+9.1%}{verdict}", flush=True)

    wrong = [measurement.label for measurement in verify.verify(standing, show) if not measurement.passed]
    wrong_delays = _measure_delay(standing)
    wrong += _measure_cpu(standing)
    if wrong_delays:
        print(f"off by more than it may be: {listed(wrong_delays)}")
    if wrong:
        print(f"off by more than {verify.TOLERANCE:.0%}: {listed(wrong)}")
    if wrong or wrong_delays:
        return 1
    print(f"all within {verify.TOLERANCE:.0%}")
    return 0


def _measure_delay(standing: emulation.Emulation) -> list[str]:
    """Measure and print round trips and losses; return the labels of those that are off by more than their tolerance."""
    if not verify_delay.ends_of(standing):
        return []
    print(f"{'what':<24}{'configured':>12}{'measured':>12}{'may be off by':>21}", flush=True)

    def show(found: verify_delay.DelayMeasurement) -> None:
        numbers = f"{found.configured:>12.3f}{found.measured:>12.3f}{found.tolerance:>21.3f} {found.unit}"
        print(f"{found.label:<24}{numbers}{'' if found.passed else '   WRONG'}", flush=True)

    return [found.label for found in verify_delay.verify_delay(standing, show) if not found.passed]


def _measure_cpu(standing: emulation.Emulation) -> list[str]:
    """Measure and print CPU quotas; return the labels of those that are off by more than the tolerance."""
    if standing.cpu_mechanism() is None:
        return []
    print(
        f"{'what':<24}{'configured':>12}{'measured':>12}{'off by':>21}   (cores; {standing.cpu_mechanism()})",
        flush=True,
    )

    def show(found: verify_cpu.CpuMeasurement) -> None:
        numbers = f"{found.configured_cores:>12.3f}{found.measured_cores:>12.3f}{found.deviation:>+21.1%}"
        print(f"{found.node + ' cpu':<24}{numbers}{'' if found.passed else '   WRONG'}", flush=True)

    return [f"{found.node} cpu" for found in verify_cpu.verify_cpu(standing, show) if not found.passed]


def _name_to_remove(word: str) -> str:
    """The name of the network that `nalb net down WORD` removes: the file's, or the word itself if the file is bad or gone."""
    try:
        return load_network(find_network(word)).name
    except InputError as error:
        if "." not in word and namespaces.standing(word):  # a namespace with a dot is a node's or site's
            return word
        raise InputError(f"{error}; `nalb net down` also takes a name that `nalb net status` prints") from None


def _down(name: str) -> int:
    if not namespaces.standing(name):
        print(f"network {name} is not up: nothing to remove")
        return 0
    rootless.require_root("nalb net down")
    removed = build.take_down(name)
    print(f"network {name} removed: {len(removed)} namespaces")
    return 0
