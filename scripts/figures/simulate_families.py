"""Runs a campaign: the project's planner on simulated networks of every family, against shares from the true capacities.

Each network exchanges MobileNet's gradients 14 times under scheme exact. The result is the median time of iterations 9 to 14 over
the time that a plan from the true capacities takes in the same fluid simulation, with the window that the planner sends once it
knows the network. A network of family changing changes once, after iteration 8. Its result is the median time of iterations 12 to
14, from the 4th after the change on, against the true capacities after the change. A network has 4 to 16 nodes, drawn by its seed.

Start 0 knows nothing. Before each other start the planner runs 4 iterations on another network of the same nodes, whose family and
rates are drawn by the network's seed and the start's number. Those 4 do not count and are not in the file. `settled after` is the
number of iterations, since the start or the change, up to the last one that takes more than 1.05 of the true capacities' time.

With --amid the change comes at a drawn moment of iteration 9, and the mean of iterations 10 to 14 counts.

With --noise all times are blurred (docs/simulation.md, "Noise"), also those of the true capacities' plan.
"""

import argparse
import json
import sys
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from nalb.errors import InputError, MachineError, NalbError
from nalb.measurement.rules import RULES, Rules
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.slices import Tensor
from nalb.process.line_file import LineFile
from nalb.simulation.families import HIGH_SEED, STAR_FAMILIES, draw_network
from nalb.simulation.job import by_planner, by_slices, planner_of, windows_of
from nalb.simulation.noise import Noise
from nalb.workloads import load

SCHEME, MODEL = "exact", "mobilenet"
TENSORS = [Tensor(t.name, t.elements, t.dtype) for t in load(MODEL)]
ITERATIONS, BEFORE = 14, 8  # all iterations, and those before the ones that count or before the change
SETTLING = 3  # iterations after a change that do not count
LOW_NODES, HIGH_NODES = 4, 16
TOO_SLOW = 1.10  # results above this count as too slow
CORES = 2.0  # the cores that all nodes of shared-cores share
WRONG = 4  # iterations on another network before a start that has wrong knowledge
WRONG_FAMILIES = ("even", "near", "heavy", "asymmetric", "adsl", "capped")  # all families that differ in rates alone
NOISY_ROUNDS = 3  # rounds of the true capacities' plan with noise, of which the median counts
SETTLED = 1.05  # an iteration is settled within this factor of the true capacities' time
HEADINGS = (
    *("family", "known before", "median", "95th percentile", "worst", "its seed", f"above {TOO_SLOW:.2f}"),
    "settled after (worst)",
)


def simulate(
    family: str, is_noisy: bool, drawn: tuple[int, int], rules: Rules = RULES, is_amid: bool = False
) -> dict[str, Any]:
    """Simulate one network from one start and return its row of the file.

    drawn: the seed and the start's number. is_amid: the change comes within an iteration.
    """
    seed, start = drawn
    noise = [Noise((seed, start, phase)) if is_noisy else None for phase in range(4)]
    count = int(np.random.default_rng(seed).integers(LOW_NODES, HIGH_NODES + 1))
    network = draw_network(family, count, seed, cores=CORES)
    quotas = None if network.quotas is None else np.array(network.quotas)
    planner = planner_of(network.nodes, TENSORS, FIRST_ALPHA_BYTES, rules=rules)
    layout = planner.layout
    after = network.changes[0][1] if network.changes else network.capacities
    run = partial(by_planner, SCHEME, network.nodes, layout, planner=planner, quotas=quotas)
    if start:
        source = np.random.default_rng([seed, start])
        other = draw_network(str(source.choice(WRONG_FAMILIES)), count, int(source.integers(HIGH_SEED)))
        run(capacities=other.capacities, rounds=WRONG, noise=noise[0])
    results = run(capacities=network.capacities, rounds=BEFORE, noise=noise[1])
    if is_amid:
        moment = np.random.default_rng([seed, BEFORE]).uniform() * results[-1].time_s
        results += run(capacities=network.capacities, rounds=1, change=(moment, after), noise=noise[2])
    results += run(capacities=after, rounds=ITERATIONS - len(results), noise=noise[2])
    times_s = [result.time_s for result in results]
    windows = windows_of(layout, network.nodes, after)
    rounds = NOISY_ROUNDS if is_noisy else 1
    true = by_slices(SCHEME, network.nodes, layout, after, rounds, windows, quotas=quotas, noise=noise[3])
    true_s = median(result.time_s for result in true)
    counted_s = times_s[BEFORE + (1 if is_amid else SETTLING * bool(network.changes)) :]
    late = [time_s > SETTLED * true_s for time_s in times_s[(BEFORE + is_amid) * bool(network.changes) :]]
    settled_after = max((number for number, is_late in enumerate(late, 1) if is_late), default=0)
    row = {
        "family": family,
        "seed": seed,
        "start": start,
        "noise": is_noisy,
        "nodes": count,
        "network": network.command,
    }
    row |= {"over_true": (mean if is_amid else median)(counted_s) / true_s, "settled_after": settled_after}
    return row | {"true_s": true_s, "times_s": times_s}


def main() -> int:
    """Simulate, write a row for each network and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(STAR_FAMILIES), help="comma-separated (default: all)")
    parser.add_argument("--first", type=int, default=1, help="seed of each family's first network (default: 1)")
    parser.add_argument("--networks", type=int, default=50, help="of each family, by seeds in a row (default: 50)")
    parser.add_argument("--starts", type=int, default=1, help="of each network; the first knows nothing (default: 1)")
    parser.add_argument(
        "--noise", action="store_true", help="blur times as recorded runs have it, by the network's seed"
    )
    parser.add_argument(
        "--amid", action="store_true", help="changes come within an iteration: with --families changing"
    )
    parser.add_argument("--processes", type=int, default=1, help="side by side (default: 1)")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON lines, one for each network")
    args = parser.parse_args()
    try:
        seeds = range(args.first, args.first + args.networks)
        campaign(args.families.split(","), seeds, args.starts, args.noise, args.processes, args.out, args.amid)
    except NalbError as error:
        parser.exit(error.exit_code, f"simulate_families: {error}\n")
    return 0


def campaign(
    families: list[str], seeds: range, starts: int, is_noisy: bool, processes: int, out: str, is_amid: bool = False
) -> None:
    """Simulate all networks from all starts, write their rows to `out` and print the table.

    Raises InputError for unknown families, wrong numbers and a file that cannot be made, MachineError for a full disk.
    """
    if unknown := set(families) - set(STAR_FAMILIES):
        raise InputError(f"--families: {min(unknown)!r} is unknown: choose of {', '.join(STAR_FAMILIES)}")
    if is_amid and families != ["changing"]:
        raise InputError("--amid: only networks of family changing change: add --families changing")
    if seeds.start < 0 or not seeds or starts < 1 or processes < 1:
        raise InputError("--first: give 0 or more; --networks, --starts and --processes: give 1 or more")
    table = Table(title=f"{SCHEME}, {MODEL}, {len(seeds)} networks each: time over that of true capacities' shares")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right")
    try:
        Path(out).touch(exist_ok=False)
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}: name a new file in a folder that is there") from None
    with LineFile(out) as file, Pool(processes) as pool:
        for family in families:
            rows, drawn = [], [(seed, start) for seed in seeds for start in range(starts)]
            done = pool.imap_unordered(partial(simulate, family, is_noisy, is_amid=is_amid), drawn)
            for row in track(done, family, len(drawn), console=Console(stderr=True), transient=True):
                rows.append(row)
                try:
                    file.append(json.dumps(row).encode() + b"\n")
                except OSError as error:
                    raise MachineError(f"--out {out}: {error.strerror}: make room") from None
            for start, of_start in (("nothing", 0), ("another network", 1)):
                if chosen := [row for row in rows if bool(row["start"]) == of_start]:
                    told = (family, start, *summary(chosen))
                    table.add_row(*told)
                    print(
                        ", ".join(f"{heading} {one}" for heading, one in zip(HEADINGS, told, strict=True)), flush=True
                    )
    Console().print(table)


def summary(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """The cells of the table for these rows, from its third column on."""
    over, after = (np.array([row[name] for row in rows]) for name in ("over_true", "settled_after"))
    worst = rows[int(over.argmax())]
    numbers = f"{np.median(over):.3f}", f"{np.quantile(over, 0.95):.3f}", f"{over.max():.3f}"
    its_seed = f"{worst['seed']}" + f", start {worst['start']}" * bool(worst["start"])
    settled = f"{np.median(after):g} ({after.max()})"
    return *numbers, its_seed, f"{(over > TOO_SLOW).sum()} of {len(over)}", settled


if __name__ == "__main__":
    sys.exit(main())
