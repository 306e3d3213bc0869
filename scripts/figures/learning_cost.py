"""Simulates what the first iterations cost, in which a job measures its links: scheme exact beside aware, MobileNet and ResNet-50.

    python scripts/figures/learning_cost.py --first 70001 --networks 4

Networks of eight nodes are drawn by seed from family even. Times are blurred (docs/simulation.md, "Noise"). An iteration's time is
over that of shares from the true capacities, the median of three iterations with the window of a job that knows its network.
"""

import argparse
import sys
from statistics import median

from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.slices import Tensor
from nalb.simulation.families import draw_network
from nalb.simulation.job import by_planner, by_slices, planner_of, windows_of
from nalb.simulation.noise import Noise
from nalb.workloads import load

MODELS, SCHEMES = ("mobilenet", "resnet50"), ("aware", "exact")
FAMILY, NODES, ITERATIONS = "even", 8, 10


def parts(model: str, scheme: str, seed: int) -> list[float]:
    """Each iteration's time over that of shares from the true capacities."""
    tensors = [Tensor(one.name, one.elements, one.dtype) for one in load(model)]
    network = draw_network(FAMILY, NODES, seed)
    nodes, capacities = network.nodes, network.capacities
    planner = planner_of(nodes, tensors, FIRST_ALPHA_BYTES)
    layout = planner.layout
    windows = windows_of(layout, nodes, capacities)
    true = by_slices("exact", nodes, layout, capacities, 3, windows, noise=Noise((seed, 3)))
    true_s = median(one.time_s for one in true)
    noise = Noise((seed, 1))
    ran = by_planner(scheme, nodes, layout, capacities=capacities, rounds=ITERATIONS, planner=planner, noise=noise)
    return [one.time_s / true_s for one in ran]


def main() -> int:
    """Simulate, and print a line for each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1, help="seed of the first network (default: 1)")
    parser.add_argument("--networks", type=int, default=4, help="(default: 4)")
    args = parser.parse_args()
    for model in MODELS:
        for seed in range(args.first, args.first + args.networks):
            for scheme in SCHEMES:
                shown = " ".join(f"{one:.3f}" for one in parts(model, scheme, seed))
                print(f"{model} {seed} {scheme:<6} {shown}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
