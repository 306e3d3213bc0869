"""Measures the delay line's cost and whether it keeps up: python benchmarks/delay_line.py [--mbps 250] [--delay-ms 10], as root.

Four nodes send TCP to each other in a ring, so each packet passes the line twice. The goal is 1 Gbit/s in all on one core.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil

from netem import delay_line, namespaces, verify
from netem.emulation import network_up
from netem.network_file import parse_network

NODES = 4
WARM_S = 1.5  # the time for each flow's slow start over the delay
MEASURE_S = 4.0


def main(argv: list[str]) -> int:
    """Measure the delay line once and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbps", type=float, default=250.0, help="of each node, up and down")
    parser.add_argument("--delay-ms", type=float, default=10.0, help="of each link and direction")
    args = parser.parse_args(argv)
    rates = f"[defaults]\nup_mbps = {args.mbps}\ndown_mbps = {args.mbps}\ndelay_ms = {args.delay_ms}\n"
    nodes = "".join(f'[[nodes]]\nname = "n{number}"\n' for number in range(NODES))
    with network_up(parse_network(f'name = "line-benchmark"\n{rates}{nodes}', "benchmark")) as emulation:
        hub = emulation.hub_namespace()
        (line,) = (psutil.Process(pid) for pid in namespaces.processes_by_namespace([hub])[hub])
        inside = [emulation.namespace(f"n{number}") for number in range(NODES)]
        flows = [
            verify.Flow("", inside[number - 1], inside[number], emulation.address(f"n{number}"), args.mbps)
            for number in range(NODES)
        ]
        begin_s, used_s = time.monotonic(), sum(line.cpu_times()[:2])
        with ThreadPoolExecutor(NODES) as pool:
            found = list(pool.map(lambda flow: verify.measure(flow, WARM_S, MEASURE_S), flows))
        cores = (sum(line.cpu_times()[:2]) - used_s) / (time.monotonic() - begin_s)
        counters = delay_line.read_counters(hub)
    print(
        f"{sum(one.measured_mbps for one in found):.0f} Mbit/s in all of {NODES * args.mbps:g}; {cores:.2f} cores;"
        f" {counters.packets / counters.bunches:.1f} packets a bunch; {counters.late} of {counters.bunches} bunches late, up to"
        f" {counters.worst_late_ns / 1e6:.1f} ms; {counters.overrun + counters.refused} dropped"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
