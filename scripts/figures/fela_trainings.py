"""Trains by Fela on emulated networks: python scripts/figures/fela_trainings.py [--only totals,uneven] [--out DIR] [--quick]

The script trains a VGG-like net on Fashion-MNIST (examples/train_fela.py). Equal nodes share 1.3 cores and have links of
100 Mbit/s; the first node has 0.1 of a core more, for the coordinator. A time is the median from one iteration's beginning to the
next one's after tuning has ended; with workers that sleep it is the mean.

totals      equal nodes, totals of 64 to 1024 samples: Fela over data, hybrid and model parallelism; where the best of these is
            within a tenth of Fela, both are trained again in pairs
cases       every configuration of Fela, each in a training of its own, and the one with which tuning ends
stragglers  workers that sleep, by turns or with a probability: the time that they add to an iteration
uneven      unequal machines (uneven4-cpu): Fela beside data parallelism and balanced batch sizes
network     unequal links (wan4-static, uneven4-joint): Fela under `exact` and `average`, and data parallelism under `joint`
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.table import Table

from experiments.networks import uneven_network, write_network
from experiments.trainings import compare_batchings, compare_parallels
from nalb.errors import InputError, NalbError
from nalb.reporting.parallel_file import ParallelResult
from nalb.tokens.tuning import Tuner, divisors, weight_cases

CORES, RATE_MBPS = 1.3, 100.0
COORDINATOR_CORES = 0.1  # cores that the first node has in addition; with eight nodes its coordinator takes 0.06
START_CORES = 2.0  # the cores of all nodes together until training begins, since small nodes take minutes to start
WARM_UP = 6  # iterations in which memory is taken and links are measured
STEADY = 8  # iterations after the warm-up over which a median is taken
NOISE = 1.1  # the factor by which medians of single runs of one case differ
PAIRS = 3  # pairs of runs of two ways whose medians differ by no more than NOISE
AGAIN = 120  # iterations for tuning's second tries of the fastest cases: eight of them; 1 in 20 trainings needs more
BASELINES = "dp,hp,mp"
NODES, TOTALS = (4, 8), (64, 128, 256, 512, 1024)
UNEVEN_TOTAL = 256
CASES_TOTAL = 256
SLEEPS = ("round-robin:2", "round-robin:4", "round-robin:8")
CHANCES = ("probability:0.1:4:1", "probability:0.3:4:1", "probability:0.5:4:1")
CHANCE_STEADY = 40  # iterations, in about four of which a worker with probability 0.1 sleeps
SLEEP_TOTAL = 128
SUB_MODELS, THRESHOLD = 3, 16  # as in examples/train_fela.py


def equal_nodes(out: Path, nodes: int) -> Path:
    """Write the network file of equal nodes and return its path."""
    name = f"equal{nodes}"
    quotas = [CORES / nodes + COORDINATOR_CORES, *[CORES / nodes] * (nodes - 1)]
    return write_network(out, name, uneven_network(name, quotas, START_CORES / nodes, RATE_MBPS))


def tuned_iterations(nodes: int) -> int:
    """The number of iterations for a training that tunes all cases and goes on, whichever size of the subset proves best."""

    def tried(best_size: int) -> int:
        tuner, count = Tuner(nodes, SUB_MODELS, max(TOTALS), THRESHOLD), 0
        while not tuner.is_done:
            tuner.observe_iteration(abs(len(tuner.configuration.subset) - best_size))
            count += 1
        return count

    return max(map(tried, divisors(nodes))) + AGAIN + WARM_UP + STEADY


def tune(folder: Path, network: Path | str, nodes: int, total: int, ways: str = "fela") -> dict[str, ParallelResult]:
    """Train by each of these ways, tuned while training. Raises InputError where tuning has not ended."""
    found = compare_parallels(folder, network, ways, tuned_iterations(nodes), total).ways
    for way, one in found.items():
        if (last := one.cases[-1]).is_tuned is not True:
            raise InputError(f"{folder}: {way} was still tuning in the last iteration: {last.reason}; raise AGAIN")
    return found


def case_of(result: ParallelResult) -> tuple[str, str]:
    """The configuration with which a training ended: its weights, and the number of workers that compute the last sub-model."""
    last = result.cases[-1]
    return ",".join(map(str, last.weights)), f"{last.members[-1]}{', apart' * last.is_apart}"


def flags_of(case: tuple[str, str]) -> list[str]:
    """The flags of `nalb compare` for such a configuration."""
    size, _, apart = case[1].partition(", ")
    return ["--weights", case[0], "--subset", size, *(["--apart"] if apart else [])]


def table_of(title: str, *headings: str) -> Table:
    """An empty table whose columns are aligned to the right."""
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def in_pairs(folder: Path, network: Path, total: int, baseline: str, case: tuple[str, str]) -> float:
    """Fela's speed over a baseline's: the median of PAIRS pairs of runs, in which the two go first by turns."""
    ratios = []
    iterations = WARM_UP + 2 * STEADY
    for pair in range(PAIRS):
        ways = ("fela", baseline) if pair % 2 else (baseline, "fela")
        run = compare_parallels(folder / f"pair-{pair}", network, ",".join(ways), iterations, total, *flags_of(case))
        ratios.append(run.ways[baseline].steady_s / run.ways["fela"].steady_s)
    return median(ratios)


def totals(out: Path, console: Console, quick: bool, chosen: Sequence[int] = TOTALS) -> None:
    """Train and print Fela's speed over each baseline, at each total."""
    table = table_of(
        "equal nodes: s an iteration; Fela's speed over each", "nodes", "total", *BASELINES.split(","), "fela",
        "weights", "S", "over dp", "over hp", "over mp", "over the best", "in pairs",
    )  # fmt: skip
    for nodes in NODES[: 1 if quick else None]:
        network = equal_nodes(out, nodes)
        for total in chosen[: 1 if quick else None]:
            folder = out / f"totals-{nodes}-{total}"
            rest = compare_parallels(folder / "baselines", network, BASELINES, WARM_UP + STEADY, total)
            fela = tune(folder / "fela", network, nodes, total)["fela"]
            times = {way: one.steady_s for way, one in rest.ways.items()}
            best = min(times, key=times.__getitem__)
            ratios = [times[way] / fela.steady_s for way in (*times, best)]
            is_close = 1 / NOISE <= ratios[-1] <= NOISE
            pairs = f"{in_pairs(folder, network, total, best, case_of(fela)):.2f} {best}" if is_close else ""
            row = [f"{one:.3f}" for one in (*times.values(), fela.steady_s)]
            table.add_row(str(nodes), str(total), *row, *case_of(fela), *(f"{one:.2f}" for one in ratios), pairs)
    console.print(table)


def cases(out: Path, console: Console, quick: bool) -> None:
    """Train and print all configurations for four nodes."""
    network, sizes = equal_nodes(out, 4), divisors(4)
    tuned = tune(out / "cases-tuned", network, 4, CASES_TOTAL)["fela"]
    seconds = {}
    every = [(weights, str(size)) for weights in weight_cases(sizes, SUB_MODELS, 4) for size in sizes]
    for few in sizes[:-1]:
        every += [(weights, f"{few}, apart") for weights in weight_cases(divisors(4 - few), SUB_MODELS, 4)]
    for weights, size in every[: 1 if quick else None]:
        case = ",".join(map(str, weights)), size
        folder = out / f"case-{'-'.join(map(str, weights))}-{size.replace(', ', '-')}"
        run = compare_parallels(folder, network, "fela", WARM_UP + 2 * STEADY, CASES_TOTAL, *flags_of(case))
        seconds[case] = run.ways["fela"].steady_s
    best = min(seconds.values())
    table = table_of(f"all configurations, total {CASES_TOTAL}", "weights", "S", "s", "over the best", "")
    for case, one in sorted(seconds.items(), key=lambda item: item[1]):
        table.add_row(*case, f"{one:.3f}", f"{one / best:.3f}", "tuning's" if case == case_of(tuned) else "")
    console.print(table, f"tuned: {case_of(tuned)}, {tuned.steady_s:.3f} s; its run took {sum(tuned.period_s):.0f} s")


def stragglers(out: Path, console: Console, quick: bool) -> None:
    """Train and print the mean time that sleeping workers add to an iteration."""
    network = equal_nodes(out, 4)
    fela = tune(out / "stragglers-tuned", network, 4, SLEEP_TOTAL)["fela"]
    weights, subset = case_of(fela)
    flags = flags_of((weights, subset))

    def means(name: str, steady: int, *more: str) -> dict[str, float]:
        run = compare_parallels(out / name, network, "dp,hp,fela", WARM_UP + steady, SLEEP_TOTAL, *flags, *more)
        return {way: mean(one.period_s[WARM_UP - 1 :]) for way, one in run.ways.items()}

    awake = means("stragglers-none", STEADY)
    table = table_of(
        f"stragglers, four nodes, total {SLEEP_TOTAL}, weights {weights}, S {subset}: added s an iteration", "",
        "dp", "hp", "fela", "under dp", "under hp", "d / N",
    )  # fmt: skip
    table.add_row("nobody: s", *(f"{one:.2f}" for one in awake.values()), "", "", "")
    for sleeps in (*SLEEPS, *CHANCES)[: 1 if quick else None]:
        steady = STEADY if sleeps in SLEEPS else CHANCE_STEADY  # in STEADY iterations each of four workers sleeps twice
        slept = means("stragglers-" + sleeps.replace(":", "-"), steady, "--stragglers", sleeps)
        added = {way: slept[way] - awake[way] for way in awake}
        under = [f"{1 - added['fela'] / added[one]:.0%}" for one in ("dp", "hp")]
        least = f"{float(sleeps.split(':')[1]) / 4:.2f}" if sleeps in SLEEPS else ""
        table.add_row(sleeps, *(f"{one:.2f}" for one in added.values()), *under, least)
    console.print(table)


def uneven(out: Path, console: Console, _: bool) -> None:
    """Train and print times on uneven4-cpu, which has 0.5, 0.4, 0.25 and 0.15 cores and links of 500 Mbit/s."""
    table = table_of("uneven4-cpu: s an iteration", "total", "dp", "fela", "lb-bsp", "over dp", "over lb-bsp")
    folder, name, total = out / "uneven", "uneven4-cpu", UNEVEN_TOTAL
    dp = compare_parallels(folder / "dp", name, "dp", WARM_UP + STEADY, total).ways["dp"].steady_s
    fela = tune(folder / "fela", name, 4, total)["fela"].steady_s
    sizes = compare_batchings(folder / "lb-bsp", name, "lb-bsp", 2 * (WARM_UP + STEADY), "vgg", total)
    lb = sizes.batchings["lb-bsp"].iteration_s
    table.add_row(str(total), f"{dp:.3f}", f"{fela:.3f}", f"{lb:.3f}", f"{dp / fela:.2f}", f"{lb / fela:.2f}")
    console.print(table)


def network(out: Path, console: Console, quick: bool, chosen: Sequence[int] = (UNEVEN_TOTAL,)) -> None:
    """Train and print times on unequal links, in uneven4-joint with unequal machines too; the more samples, the more is summed."""
    table = table_of("unequal links: s an iteration", "network", "total", "fela@average", "fela@exact", "dp under joint",
        "over average", "over dp")  # fmt: skip
    for name, total in product(("wan4-static", "uneven4-joint")[: 1 if quick else None], chosen):
        folder = out / f"network-{name}-{total}"
        both = tune(folder / "fela", name, 4, total, "fela@average,fela@exact")
        average, exact = (one.steady_s for one in both.values())
        sizes = compare_batchings(folder / "joint", name, "joint", 2 * (WARM_UP + STEADY), "vgg", total)
        joint = sizes.batchings["joint"].iteration_s
        row = [f"{one:.3f}" for one in (average, exact, joint)]
        table.add_row(name, str(total), *row, f"{average / exact:.2f}", f"{joint / exact:.2f}")
    console.print(table)


PARTS: dict[str, Callable[..., None]] = {one.__name__: one for one in (totals, cases, stragglers, uneven, network)}


def main() -> int:
    """Run the chosen parts; trainings that are finished are read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated parts")
    parser.add_argument("--totals", help=f"comma-separated, of totals (default: all) and network ({UNEVEN_TOTAL})")
    parser.add_argument("--out", type=Path, default=Path("runs/fela"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="the first of everything: does it work?")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := [one for one in names if one not in PARTS]:
        parser.error(f"--only: unknown {unknown[0]!r}: choose of {', '.join(PARTS)}")
    chosen = {"chosen": [int(one) for one in args.totals.split(",")]} if args.totals else {}
    try:
        for name in names:
            part = partial(PARTS[name], **chosen) if name in (totals.__name__, network.__name__) else PARTS[name]
            part(args.out, Console(width=160), args.quick)
    except NalbError as error:
        print(f"fela_trainings: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
