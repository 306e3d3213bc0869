"""Times ways to send fewer bytes, in turn on one emulated network, as root: python benchmarks/fewer_bytes.py --out FILE

PyTorch's DDP on gloo and on nalb, with DDP's own hooks and with nalb's precisions; MXNet's own store with its 2-bit compression;
hivemind's averager, whose peers are told their true rates. Jobs of nalb know no rates at their start. The first LEARNING
iterations of a job do not count. An iteration's time is the mean over workers: another one is the slowest each time, and who ends
late begins the next one late. A round of hivemind's, which all peers begin together, takes as long as its slowest peer. Each round
runs every way once. --mxnet-python and --hivemind-python name interpreters; without them MXNet and hivemind are left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from fewer_bytes_worker import SAID
from hivemind_averager import measure

from nalb.workloads import NAMES, bytes_of
from netem.emulation import network_up
from netem.network_file import find_network, load_network
from netem.rootless import ensure_privilege

WORKER = Path(__file__).with_name("fewer_bytes_worker.py")
LEARNING = 5
LIMIT_S = 600.0
WAYS: dict[str, tuple[str, str, str, str]] = {  # framework, scheme, precision, hook
    "gloo": ("torch", "gloo", "", "none"),
    "gloo, fp16 hook": ("torch", "gloo", "", "fp16"),
    "gloo, PowerSGD rank 1": ("torch", "gloo", "", "powersgd-1"),
    "gloo, PowerSGD rank 4": ("torch", "gloo", "", "powersgd-4"),
    "gloo, PowerSGD rank 16": ("torch", "gloo", "", "powersgd-16"),
    "MXNet": ("mxnet", "stock", "", "none"),
    "MXNet, 2 bits": ("mxnet", "stock", "", "2bit"),
    "nalb": ("torch", "exact", "", "none"),
    "nalb, float16": ("torch", "exact", "float16", "none"),
    "nalb, int8": ("torch", "exact", "int8", "none"),
    "nalb, int4": ("torch", "exact", "int4", "none"),
    "nalb, PowerSGD rank 4": ("torch", "exact", "", "powersgd-4"),
    "nalb, PowerSGD rank 16": ("torch", "exact", "", "powersgd-16"),
    "nalb, PowerSGD rank 16, float16": ("torch", "exact", "float16", "powersgd-16"),
    "nalb, PowerSGD rank 16, int8": ("torch", "exact", "int8", "powersgd-16"),
}
HIVEMIND = {"hivemind": "none", "hivemind, float16": "float16", "hivemind, 8 bits": "uniform8"}  # its codecs
HIVEMIND_ROUNDS = 4  # of hivemind's own, the first of which does not count


def took_s(way: str, args: argparse.Namespace) -> list[float]:
    """Seconds of each iteration that counts. Ends with a message if the job fails."""
    if codec := HIVEMIND.get(way):
        with network_up(load_network(find_network(args.network))) as emulation:
            return measure(emulation, args.hivemind_python, codec, bytes_of(args.replay), HIVEMIND_ROUNDS)
    framework, scheme, precision, hook = WAYS[way]
    python = sys.executable if framework == "torch" else args.mxnet_python
    command = [python, "-m", "nalb.cli.main", "launch", "--framework", framework, "--network", args.network]
    command += ["--scheme", scheme, *(["--precision", precision] if precision else [])]
    command += ["--", python, str(WORKER), framework, hook, args.replay, str(LEARNING + args.iterations)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    lines = [line.partition(SAID)[2] for line in done.stdout.splitlines() if SAID in line]
    if done.returncode or not lines:
        sys.exit(f"{way}: the job ended with {done.returncode}: {done.stderr[-300:]}")
    return [statistics.mean(one) for one in zip(*map(json.loads, lines), strict=True)][LEARNING:]


def main(argv: list[str]) -> int:
    """Time every way in turn, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="wan6-static", metavar="FILE")
    parser.add_argument(
        "--replay", choices=NAMES, default="mobilenet", help="the model whose shapes the gradients have"
    )
    parser.add_argument("--mxnet-python", metavar="PYTHON")
    parser.add_argument("--hivemind-python", metavar="PYTHON")
    known = [*WAYS, *HIVEMIND]
    parser.add_argument(
        "--way", action="append", choices=known, metavar="NAME", help="only this one, and others so named"
    )
    parser.add_argument("--iterations", type=int, default=10, help="of a job, that count (default: 10)")
    parser.add_argument("--rounds", type=int, default=2, help="(default: 2)")
    parser.add_argument("--out", type=Path, required=True, help="JSON: the seconds of each way's iterations, by round")
    args = parser.parse_args(argv)
    ensure_privilege()
    ways = [way for way, (framework, *_) in WAYS.items() if framework == "torch" or args.mxnet_python]
    ways += HIVEMIND if args.hivemind_python else []
    ways = [way for way in ways if not args.way or way in args.way]
    found: dict[str, list[list[float]]] = {way: [] for way in ways}
    for number in range(args.rounds):
        for way in ways:
            found[way].append(took_s(way, args))
            print(f"round {number + 1}: {way}: {statistics.median(found[way][-1]):.3f} s", file=sys.stderr, flush=True)
            args.out.write_text(json.dumps({"network": args.network, "replay": args.replay, "took_s": found}) + "\n")
    for way, rounds in found.items():
        medians = [statistics.median(one) for one in rounds]
        print(f"{way:<34}{statistics.median(medians):.3f} s, {min(medians):.3f} to {max(medians):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
