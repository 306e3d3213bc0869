"""A campaign: the project's planner on simulated networks of every family, against shares from the true capacities.

Each network exchanges MobileNet's gradients 14 times under scheme exact. What counts is the median time of iterations 9 to 14 over
the time that a plan from the true capacities takes in the same fluid simulation, with the window that the planner sends once it
knows the network. A network of family changing changes once, after iteration 8; what counts are iterations 12 to 14, from the 4th
after it on, against the true capacities of then. A network has 4 to 16 nodes, drawn by its seed.
"""

import argparse
import json
import sys
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from nalb.control.planner import usual_window_bytes
from nalb.errors import InputError, NalbError
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.slices import Tensor
from nalb.simulation.families import FAMILIES, draw_network
from nalb.simulation.job import by_planner, by_slices, planner_of
from nalb.workloads import load

SCHEME, MODEL = "exact", "mobilenet"
TENSORS = [Tensor(t.name, t.elements, t.dtype) for t in load(MODEL)]
ITERATIONS, BEFORE = 14, 8  # all, and those before what counts, or before the change
SETTLING = 3  # iterations after a change that do not count
LOW_NODES, HIGH_NODES = 4, 16
TOO_SLOW = 1.10  # times what true capacities give


def simulate(family: str, seed: int) -> dict[str, object]:
    """One network: its row in the file."""
    count = int(np.random.default_rng(seed).integers(LOW_NODES, HIGH_NODES + 1))
    network = draw_network(family, count, seed)
    planner = planner_of(network.nodes, TENSORS, FIRST_ALPHA_BYTES)
    layout = planner.layout
    after = network.changes[0][1] if network.changes else network.capacities
    run = partial(by_planner, SCHEME, network.nodes, layout, planner=planner)
    results = [*run(capacities=network.capacities, rounds=BEFORE), *run(capacities=after, rounds=ITERATIONS - BEFORE)]
    times_s = [result.time_s for result in results]
    window_bytes = usual_window_bytes(layout.model_bytes)
    true_s = by_slices(SCHEME, network.nodes, layout, after, 1, window_bytes)[0].time_s
    counted_s = times_s[BEFORE + SETTLING * bool(network.changes) :]
    row = {"family": family, "seed": seed, "nodes": count, "network": network.command}
    return row | {"over_true": median(counted_s) / true_s, "true_s": true_s, "times_s": times_s}


def main() -> int:
    """Simulate, write a row for each network, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated (default: all)")
    parser.add_argument("--first", type=int, default=1, help="seed of each family's first network (default: 1)")
    parser.add_argument("--networks", type=int, default=50, help="of each family, by seeds in a row (default: 50)")
    parser.add_argument("--processes", type=int, default=1, help="side by side (default: 1)")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON lines, one for each network")
    args = parser.parse_args()
    try:
        campaign(args.families.split(","), range(args.first, args.first + args.networks), args.processes, args.out)
    except NalbError as error:
        parser.exit(error.exit_code, f"simulate_families: {error}\n")
    return 0


def campaign(families: list[str], seeds: range, processes: int, out: str) -> None:
    """All of it. InputError for what cannot be simulated or written."""
    if unknown := set(families) - set(FAMILIES):
        raise InputError(f"--families: {min(unknown)!r} is unknown: choose of {', '.join(FAMILIES)}")
    if seeds.start < 0 or not seeds or processes < 1:
        raise InputError("--first: give 0 or more; --networks and --processes: give 1 or more")
    table = Table(title=f"{SCHEME}, {MODEL}, {len(seeds)} networks each: time over that of true capacities' shares")
    for heading in ("family", "median", "95th percentile", "worst", "its seed", f"above {TOO_SLOW:.2f}"):
        table.add_column(heading, justify="left" if heading == "family" else "right")
    try:
        Path(out).touch(exist_ok=False)
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}: name a new file in a folder that is there") from None
    with open(out, "a", encoding="utf-8") as file, Pool(processes) as pool:
        for family in families:
            if family == "shared-cores":
                print("shared-cores: skipped, since the fluid simulation knows no cores", flush=True)
                continue
            rows = []
            done = pool.imap_unordered(partial(simulate, family), seeds)
            for row in track(done, family, len(seeds), console=Console(stderr=True), transient=True):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
            over = np.array([row["over_true"] for row in rows])
            worst = rows[int(over.argmax())]
            numbers = f"{np.median(over):.3f}", f"{np.quantile(over, 0.95):.3f}", f"{over.max():.3f}"
            table.add_row(family, *numbers, str(worst["seed"]), f"{(over > TOO_SLOW).sum()} of {len(over)}")
            print(f"{family}: {' '.join(numbers)}", flush=True)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
