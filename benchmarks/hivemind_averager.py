"""Times hivemind's averager on an emulated network, as root: python benchmarks/hivemind_averager.py --python PYTHON

PYTHON is one of an environment of its own, with torch and hivemind in it. Each peer is told its node's true rate, the lower of up
and down, by which hivemind shares the work out. A round takes as long as its slowest peer. The first round of a codec does not
count, since connections are made in it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from nalb.workloads import NAMES, bytes_of
from netem import namespaces
from netem.emulation import Emulation, network_up
from netem.network_file import find_network, load_network
from netem.rootless import ensure_privilege

CODECS = ("none", "float16", "uniform8", "blockwise8")
LIMIT_S = 60.0  # of a round
WORKER = Path(__file__).with_name("hivemind_worker.py")


def measure(emulation: Emulation, python: str, codec: str, num_bytes: int, rounds: int) -> list[float]:
    """Seconds of each round that counts: of its slowest peer. Ends with a message if a peer fails or a sum is wrong."""
    rates = emulation.rates()
    limit_s = LIMIT_S * (rounds + 1)
    with tempfile.TemporaryDirectory() as name:
        folder, peers = Path(name), []
        try:
            for rank, (node, both) in enumerate(rates.items()):
                argv = [python, str(WORKER), str(rank), str(len(rates)), emulation.address(node), str(min(both)), codec]
                argv = emulation.command(node, [*argv, str(num_bytes), str(rounds), name])
                with (folder / f"said{rank}").open("w") as said:
                    peers.append(subprocess.Popen(argv, stdout=said, stderr=subprocess.DEVNULL))
            end_s = time.monotonic() + limit_s
            for peer in peers:
                peer.wait(timeout=max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            sys.exit(f"codec {codec}: no end within {limit_s:.0f} s")
        finally:  # hivemind's own processes outlive their peers
            namespaces.kill_inside([emulation.namespace(node) for node in rates])
            for peer in peers:
                peer.wait()
        lines = [line for rank in range(len(rates)) for line in (folder / f"said{rank}").read_text().splitlines()]
    took: dict[int, list[float]] = defaultdict(list)
    for line in lines:
        said = json.loads(line)
        if said["took_s"] is None:
            sys.exit(f"codec {codec}: peer {said['rank']} averaged nothing in round {said['round']}")
        if said["error"] > 0.05:
            sys.exit(
                f"codec {codec}: peer {said['rank']} has a wrong average in round {said['round']}: off by {said['error']}"
            )
        took[said["round"]].append(said["took_s"])
    if any(len(took[number]) != len(rates) for number in range(rounds)):
        sys.exit(f"codec {codec}: not every peer ended all {rounds} rounds")
    return [max(took[number]) for number in range(1, rounds)]


def main(argv: list[str]) -> int:
    """Time each codec in turn on one network and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="the interpreter that has torch and hivemind")
    parser.add_argument("--network", default="wan6-static", metavar="FILE")
    parser.add_argument("--replay", choices=NAMES, default="mobilenet", help="the model whose bytes are averaged")
    parser.add_argument("--codecs", default=",".join(CODECS), help=f"of {', '.join(CODECS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="of each codec (default: 5)")
    args = parser.parse_args(argv)
    ensure_privilege()
    with network_up(load_network(find_network(args.network))) as emulation:
        for codec in args.codecs.split(","):
            times_s = measure(emulation, args.python, codec, bytes_of(args.replay), args.rounds)
            print(
                f"{codec:<12}median {statistics.median(times_s):.3f} s, {min(times_s):.3f} to {max(times_s):.3f},"
                f" {len(times_s)} rounds",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
