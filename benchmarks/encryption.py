"""Measures encryption's cost: the same replay takes turns over MXNet's libzmq, over pyzmq's, and encrypted.

    python benchmarks/encryption.py --local 3
    python benchmarks/encryption.py --network wan4-static        # as root

Three held jobs share the machine, and only one iterates at a time. The table has for each transport the median of an iteration's
communication time (first push to last pull, slowest worker), its quartiles, and the median over the first transport's median.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from nalb.errors import JobError
from nalb.events import BlockEvent, IdleEvent, IterationEvent
from nalb.launch.network import inside, places_in
from nalb.launch.ports import free_pair
from nalb.launch.roles import Place, ProcessSpec, process_specs
from nalb.launch.supervisor import Job
from nalb.options import JobOptions
from nalb.protocol import wire
from nalb.transport.keys import make_keys, write_keys
from nalb.transport.observer import Observer
from nalb.workloads import NAMES
from netem.emulation import network_up
from netem.network_file import find_network, load_network
from netem.rootless import ensure_privilege

SCHEME = "average"  # its plans do not depend on measurements, so all three jobs do the same work
WARM_UP = 2  # iterations of each job that are not counted; the first makes the slots
BLOCK = 3  # iterations in a turn
STARTUP_S = 120.0


def start_job(
    name: str,
    places: Sequence[Place],
    wrap: Callable[[ProcessSpec], list[str]],
    port: int,
    args: argparse.Namespace,
    folder: Path,
    stack: ExitStack,
) -> tuple[Job, Observer]:
    """Start a held job on one of the transports, with an observer."""
    keys_dir = folder / "keys"
    if name == "encrypted":
        write_keys(keys_dir, make_keys({place.name: place.address for place in places}))
    options = JobOptions(
        root_port=port,
        scheme=SCHEME,
        transport="mxnet" if name == "mxnet" else "pyzmq",
        observers=f"ipc://{folder / name}",
        hold=True,
    )
    command = [sys.executable, "-m", "kvstore_patch.roles.replay", args.replay]
    keys = str(keys_dir) if name == "encrypted" else None
    specs = process_specs(places, command, options, os.environ, keys)
    job = stack.enter_context(Job(specs, wrap, os.environ, folder / f"logs-{name}"))
    return job, stack.enter_context(Observer(f"ipc://{folder / name}"))


def wait_for_tensors(job: Job, observer: Observer) -> None:
    """Wait until the job has registered the tensors that it pushes. Raises JobError after STARTUP_S."""
    end_s = time.monotonic() + STARTUP_S
    while not any(isinstance(event, IdleEvent) for event in observer.events(0.2)):
        job.finished()
        if time.monotonic() > end_s:
            raise JobError(f"a job did not begin within {STARTUP_S:g} s")


def run_block(job: Job, observer: Observer, iterations: int) -> list[float]:
    """Run a block of iterations; return the communication seconds of each."""
    observer.send(wire.RunBlock(SCHEME, iterations))
    times_s: list[float] = []
    done = False
    while not done:
        job.finished()
        for event in observer.events(0.1):
            if isinstance(event, IterationEvent):
                times_s.append(max(event.communication_s.values()))
            done = done or isinstance(event, BlockEvent)
    return times_s


def main() -> None:
    """Measure all transports and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--local", type=int, metavar="N")
    where.add_argument("--network", metavar="FILE")
    parser.add_argument("--replay", choices=NAMES, default="mobilenet")
    parser.add_argument("--rounds", type=int, default=5, help=f"turns of {BLOCK} iterations (default: 5)")
    args = parser.parse_args()
    if args.network:
        ensure_privilege()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.network:
            emulation = stack.enter_context(network_up(load_network(find_network(args.network))))
            places, wrap = places_in(emulation), inside(emulation)
        else:
            places = [Place(f"n{i}", f"127.0.0.{i + 1}") for i in range(args.local)]

            def wrap(spec: ProcessSpec) -> list[str]:
                return list(spec.argv)

        lanes = {}
        for name in ("mxnet", "pyzmq", "encrypted"):
            port = stack.enter_context(free_pair("127.0.0.1"))
            lanes[name] = start_job(name, places, wrap, port, args, folder, stack)
            wait_for_tensors(*lanes[name])
        times_s: dict[str, list[float]] = {name: [] for name in lanes}
        for lane in lanes.values():
            run_block(*lane, WARM_UP)
        for _ in range(args.rounds):
            for name, lane in lanes.items():
                times_s[name] += run_block(*lane, BLOCK)
        for job, observer in lanes.values():
            observer.send(wire.EndJob())
            job.wait()
    base_s = statistics.median(times_s["mxnet"])
    print(
        f"{'transport':<12}{'median s':>10}{'quartiles s':>20}{'ratio':>8}   ({len(times_s['mxnet'])} iterations each)"
    )
    for name, values in times_s.items():
        low_s, middle_s, high_s = statistics.quantiles(values, n=4)
        print(f"{name:<12}{middle_s:>10.3f}{f'{low_s:.3f} .. {high_s:.3f}':>20}{middle_s / base_s:>8.2f}")


if __name__ == "__main__":
    main()
