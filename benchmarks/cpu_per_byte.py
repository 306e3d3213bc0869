"""Measures nalb's cost over stock MXNet: CPU milliseconds per MB of gradients and seconds of an iteration; jobs take turns.

    python benchmarks/cpu_per_byte.py --local 4
    python benchmarks/cpu_per_byte.py --network fast4.toml --replay resnet50      # as root

Each scheme is a job of its own; stock is MXNet alone, without shim and coordinator. All jobs live at once, but only one iterates
at a time: the workers of the others wait at a gate. CPU is the user and system time of all processes of the job, the
coordinator's included, over the MB that its workers push. Ratios are medians over rounds of a block over stock's block in the
same round.
"""

import argparse
import itertools
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from nalb.launch.network import inside, places_in
from nalb.launch.ports import free_pair
from nalb.launch.roles import Place, ProcessSpec, process_specs
from nalb.launch.supervisor import Job
from nalb.options import JobOptions
from nalb.workloads import NAMES, bytes_of, load
from netem.emulation import network_up
from netem.network_file import find_network, load_network
from netem.rootless import ensure_privilege

STARTUP_S = 120.0
BLOCK_S = 600.0


def work(model: str, gate: str, compute_s: float) -> None:
    """Run a worker: for each number that the gate sends, run as many iterations and answer with their end times. 0 ends it."""
    import mxnet as mx

    from kvstore_patch.store.kvstore import NALB

    store = mx.kv.create("nalb")
    gradients = [mx.nd.zeros(tensor.shape, dtype=tensor.dtype) for tensor in load(model)]
    if isinstance(store, mx.kvstore.KVStore):  # scheme stock
        for key, gradient in enumerate(gradients):
            store.init(key, gradient)

    def exchange() -> None:  # makes the calls that Gluon's Trainer makes
        if isinstance(store, NALB):
            store.add_up_gradients(list(range(len(gradients))), [[one] for one in gradients])
        else:
            for key, gradient in enumerate(gradients):
                store.pushpull(key, gradient, out=gradient, priority=-key)
        mx.nd.waitall()

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(gate)
        with connection.makefile("rw") as lines:
            while iterations := int(lines.readline()):
                ends_s = []
                for _ in range(iterations):
                    time.sleep(compute_s)
                    exchange()
                    ends_s.append(time.monotonic())
                print(json.dumps(ends_s), file=lines, flush=True)


class Lane:
    """One scheme's job, whose workers wait at the gate."""

    def __init__(
        self,
        scheme: str,
        places: Sequence[Place],
        wrap: Callable[[ProcessSpec], list[str]],
        args: argparse.Namespace,
        folder: Path,
        stack: ExitStack,
    ):
        gate = stack.enter_context(socket.socket(socket.AF_UNIX))
        gate.bind(str(folder / f"gate-{scheme}"))
        gate.listen()
        gate.settimeout(STARTUP_S)
        options = JobOptions(
            stack.enter_context(free_pair(places[0].address if args.local else "127.0.0.1")),
            scheme,
            observers=None if scheme == "stock" else f"ipc://{folder / scheme}",
            samples_path=None
            if scheme == "stock" or args.events is None
            else str(Path(args.events) / f"{scheme}.jsonl"),
        )
        own = [sys.executable, __file__, "--worker", gate.getsockname(), "--replay", args.replay]
        specs = process_specs(places, [*own, "--compute-ms", str(args.compute_ms)], options, os.environ)
        self._job = stack.enter_context(Job(specs, wrap, os.environ, folder / f"logs-{scheme}", print))
        self._workers = []
        for _ in places:
            connection = stack.enter_context(gate.accept()[0])
            connection.settimeout(BLOCK_S)
            self._workers.append(stack.enter_context(connection.makefile("rw")))

    def run(self, iterations: int) -> tuple[list[float], float]:
        """Run this many iterations; return the seconds of each, and the CPU seconds of all together."""
        began_s, cpu_s = time.monotonic(), self._cpu_s()
        for worker in self._workers:
            print(iterations, file=worker, flush=True)
        ends_s = [max(one) for one in zip(*(json.loads(worker.readline()) for worker in self._workers), strict=True)]
        times_s = [end - start for start, end in itertools.pairwise([began_s, *ends_s])]
        return times_s, self._cpu_s() - cpu_s

    def end(self) -> None:
        """Tell the workers to end, and wait for the job's end."""
        for worker in self._workers:
            print(0, file=worker, flush=True)
        self._job.wait()

    def _cpu_s(self) -> float:
        times = [psutil.Process(child.popen.pid).cpu_times() for child in self._job.children]
        return sum(one.user + one.system for one in times)


def measure(args: argparse.Namespace) -> None:
    """Run the jobs and print the table."""
    schemes = list(dict.fromkeys(["stock", *args.schemes.split(",")]))
    times_s: dict[str, list[list[float]]] = {scheme: [] for scheme in schemes}
    cpu_s: dict[str, list[float]] = {scheme: [] for scheme in schemes}
    if args.network:
        ensure_privilege()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.network:
            emulation = stack.enter_context(network_up(load_network(find_network(args.network))))
            places, wrap = places_in(emulation), inside(emulation)
        else:
            places, wrap = [Place(f"n{i}", "127.0.0.1") for i in range(args.local)], lambda spec: list(spec.argv)
        lanes = {scheme: Lane(scheme, places, wrap, args, folder, stack) for scheme in schemes}
        for lane in lanes.values():
            lane.run(args.warm_up)
        for number in range(args.rounds):
            for scheme in schemes[number % len(schemes) :] + schemes[: number % len(schemes)]:
                times, cpu = lanes[scheme].run(args.block)
                times_s[scheme].append(times[1:])  # the first iteration also waits for the gate
                cpu_s[scheme].append(cpu)
        for lane in lanes.values():
            lane.end()
    pushed_mb = args.block * len(places) * bytes_of(args.replay) / 1e6
    load_1 = os.getloadavg()[0]
    print(
        f"{args.replay}, {args.rounds} rounds of {args.block} iterations, load of the machine at the end {load_1:.1f}"
    )
    print(
        f"{'scheme':<10}{'iteration s':>12}{'x stock':>9}{'quartiles':>14}{'CPU ms/MB':>11}{'added':>7}{'x stock':>9}"
    )
    for scheme in schemes:
        pairs = zip(times_s[scheme], times_s["stock"], strict=True)
        ratios = [statistics.median(own) / statistics.median(stock) for own, stock in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cpu_ms, stock_ms = (1e3 * statistics.median(cpu_s[one]) / pushed_mb for one in (scheme, "stock"))
        print(
            f"{scheme:<10}{statistics.median(itertools.chain(*times_s[scheme])):>12.4f}{middle:>9.3f}"
            f"{f'{low:.2f} .. {high:.2f}':>14}{cpu_ms:>11.2f}{cpu_ms - stock_ms:>7.2f}{cpu_ms / stock_ms:>9.3f}"
        )


def main() -> None:
    """Measure and print, or run as a worker of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--local", type=int, metavar="N", help="N nodes on loopback")
    parser.add_argument("--network", metavar="FILE", help="the nodes of an emulated network")
    parser.add_argument("--replay", choices=NAMES, default="mobilenet")
    parser.add_argument("--schemes", default="average,exact", help="compared with stock (default: average,exact)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=int, default=10, help="iterations of a turn (default: 10)")
    parser.add_argument(
        "--warm-up", type=int, default=20, help="iterations of each job that are not counted (default: 20)"
    )
    parser.add_argument("--compute-ms", type=float, default=0.0, help="a sleep before each exchange (default: 0)")
    parser.add_argument("--events", metavar="DIR", help="where each job leaves its samples.jsonl")
    parser.add_argument("--worker", metavar="GATE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.replay, args.worker, args.compute_ms / 1000)
    elif (args.local is None) == (args.network is None):
        parser.error("give one of --local and --network")
    else:
        measure(args)


if __name__ == "__main__":
    main()
