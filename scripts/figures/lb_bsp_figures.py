"""Repeats LB-BSP's figures on this machine (Chen et al., 2021): 8 and 9 simulated, 10 and 12 by real training.

    python scripts/figures/lb_bsp_figures.py [--out DIR] [--quick]

8   Algorithm 2 on four lines through the figure's own equilibrium; at iteration 150 the M60's link gets slower
9   Algorithm 2 on eight workers, one of which has a link that changes between 480 and 160 Mbit/s
10  BSP, SSP and LB-BSP on four machines whose cores change at random; first simulated, beside the best sizes; then again in
    micro-batches of one size, for which MXNet sets itself up once, all on nalb's exchange; and with NARX, which learns in a job
    before
12  all four schemes on equal machines, and with the slowest at 1/2 and at 1/3 of the fastest; and the updates that they need to
    reach an accuracy. Figures 6 and 7 show the same on GPUs

Other scripts make the rest: lb_bsp_prediction.py figure 11 and Table 3, federated_accuracy.py figure 13, whose real rounds
uneven_machines.py times, and `benchmarks/batching_cost.py --workers N` figure 14.
"""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from experiments.networks import changing_machines, uneven_network, write_network
from experiments.runs import run_script
from experiments.stored import BEGUN_S, updates_in_time
from experiments.trainings import compare_batchings
from nalb.batching.decisions import Observation
from nalb.batching.lb_bsp import StepBalancer
from nalb.batching.schemes import PREDICTORS
from nalb.batching.sizes import Bounds
from nalb.planning.nodes import Floats
from nalb.reporting.batching_file import BatchingFile, BatchingResult
from nalb.services.batching.messages import Computed, JoinBatching
from nalb.services.batching.sizer import BatchSizer
from netem.network import Network
from netem.network_file import parse_network
from netem.schedule import quotas_at

NOISE = 0.02  # the relative noise of a simulated worker's time
LEVELS = {  # the machines' cores in Fig. 12, 1.2 in all; the slowest has 1, 1/2 and 1/3 of the fastest's
    "homo": (0.3, 0.3, 0.3, 0.3),
    "l2": (0.4, 0.35, 0.25, 0.2),
    "l3": (0.45, 0.36, 0.24, 0.15),
}
CHANGING = (0.06, 0.3)  # the range of cores in Fig. 10; under LB-BSP all compute at once and need their cores together
EVERY_S = 30  # the time between draws of cores, some tens of iterations
SAMPLE_CPU_S = 0.15 / 1600  # core seconds of a sample of the CNN (docs/batching.md)
OVERHEAD_CPU_S = 0.03  # core seconds of an iteration beside its samples; 20 to 80 ms were measured
SPEED_NOISE = (0.03, 0.15)  # the noise in the traces of speeds, and the noise measured while others use the machine
MICRO = ("--micro", "64")  # Fig. 10: batches of any size are computed in parts of 64 samples
LEARN = (620, "cnn", 2048)  # the training in which NARX learns: it begins after 500 iterations
TARGET = 0.70  # the accuracy up to which Fig. 12 counts updates; a few dozen reach it
TEST_EVERY = 5  # updates between tests; iterations with a test are too few to move the medians
TRAINING = ("cnn", 4096)  # the model, and the samples of an iteration


def step_balanced(
    fixed_s: Floats, sample_s: Floats, start: tuple[int, ...], iterations: int
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Simulate Algorithm 2 with times t_i(b) = fixed_s[k, i] + sample_s[i] b for worker i in iteration k.

    Returns the sizes of each iteration, shape (iterations, workers), and the seconds of each, shape (iterations,).
    """
    generator = np.random.default_rng(0)
    balancer, sizes = StepBalancer(Bounds.of(sum(start), len(start))), start
    all_sizes, seconds = [], []
    for k in range(iterations):
        times = (fixed_s[k] + sample_s * np.array(sizes)) * (1 + NOISE * generator.standard_normal(len(sizes)))
        all_sizes.append(sizes)
        seconds.append(float(times.max()))
        sizes = balancer.update([Observation(b, float(t)) for b, t in zip(sizes, times, strict=True)]).sizes or sizes
    return np.array(all_sizes), np.array(seconds)


def figure_8(console: Console) -> None:
    """Print Fig. 8: Inception-V3 on a V100, an M60, a K80 and a K520; 26 samples fewer save the K520 2 s (their 5.2.1)."""
    goal = np.array([89, 21, 12, 6])
    fixed_s = np.full((300, 4), 0.24)
    fixed_s[150:, 1] += 0.45  # the model's bytes at 2.5 Gbit/s instead of 10
    sizes, seconds = step_balanced(fixed_s, 2 / 26 * 6 / goal, (32,) * 4, 300)
    table = Table(title="Fig. 8, simulated: sizes under Algorithm 2; the paper settles at 89 21 12 6 by iteration 30")
    for heading in ("iteration", "V100", "M60", "K80", "K520", "iteration s"):
        table.add_column(heading, justify="right")
    for k in (0, 10, 20, 30, 60, 149, 160, 200, 299):
        table.add_row(str(k), *map(str, sizes[k]), f"{seconds[k]:.2f}")
    console.print(table)


def figure_9(console: Console) -> None:
    """Print Fig. 9: ResNet-32 on four g2.2x (one the testee), two p2 and two g3.4x.

    The paper gives the testee's batches: 380, and 235 afterwards.
    """
    fixed_s = np.full((700, 8), 0.29)
    narrow = (np.arange(700) >= 300) & (np.arange(700) // 100 % 2 == 1)
    fixed_s[:, 0] += np.where(narrow, 0.19, 0.063)  # 3.7 MB, there and back together, at 160 and at 480 Mbit/s
    sample_s = np.array([0.71 / 380] * 4 + [0.71 / 380 * 235 / 525] * 4)
    sizes, seconds = step_balanced(fixed_s, sample_s, (380,) * 8, 700)
    equal_s = (fixed_s + sample_s * 380).max(axis=1)
    wide_s, narrow_s = np.median(seconds[250:300]), np.median(seconds[narrow])
    table = Table(title="Fig. 9, simulated: a link between 480 and 160 Mbit/s, every 100 iterations")
    for heading in ("", "testee's batch", "iteration s", "BSP s", "less than BSP", "paper"):
        table.add_column(heading, justify="right")
    for name, k, lb_s, bsp_s, paper in (
        ("480 Mbit/s", 299, wide_s, equal_s[299], "27 %, batch 235"),
        ("160 Mbit/s", 399, narrow_s, equal_s[399], "41 %, iteration up by under 3 %"),
    ):
        table.add_row(name, str(sizes[k, 0]), f"{lb_s:.3f}", f"{bsp_s:.3f}", f"{1 - lb_s / bsp_s:.0%}", paper)
    console.print(table, f"after the drop: {narrow_s / wide_s - 1:+.1%}")


def updates_in_s(network: Network, balanced_by: str, noise: float, until_s: float) -> int:
    """The number of simulated iterations from BEGUN_S to `until_s`.

    balanced_by: a predictor, "bsp" (equal sizes), or "ideal" (sizes by the present cores). noise: the deviation of the logarithms
    of computing times.
    """
    workers = len(network.nodes)
    generator = np.random.default_rng(0)
    batching = "lb-bsp" if balanced_by in PREDICTORS else "off"
    manager = BatchSizer(batching, workers, predictor=PREDICTORS.get(balanced_by))
    for rank in range(workers):
        manager.join(rank, JoinBatching(TRAINING[1] // workers, None))
    now_s, updates, iteration = 0.0, 0, 0
    while now_s < until_s:
        cores = np.array([quotas_at(network, now_s)[node.name] for node in network.nodes], float)
        sizes = np.array(manager.outbox[-1].sizes)
        samples = TRAINING[1] * cores / cores.sum() if balanced_by == "ideal" else sizes
        compute_s = SAMPLE_CPU_S * samples / cores * np.exp(noise * generator.standard_normal(workers))
        for rank in range(workers):
            manager.computed(rank, Computed(iteration, int(sizes[rank]), float(compute_s[rank]), 1.0, 0.0, 0.0, 0.0))
        updates += now_s >= BEGUN_S
        now_s += float((compute_s + OVERHEAD_CPU_S / cores).max())
        iteration += 1
    return updates


def figure_10_simulated(console: Console) -> None:
    """Print the possible gain on machines whose cores change, and the predictors' gains."""
    table = Table(
        title=f"Fig. 10, simulated: iteration time over BSP's, cores from {CHANGING[0]} to {CHANGING[1]}, 10 draws"
    )
    for heading in ("noise of speeds", "drawn every s", "ema", "memoryless", "best sizes"):
        table.add_column(heading, justify="right")
    for noise in SPEED_NOISE:
        for every_s in (EVERY_S, 5 * EVERY_S):
            over: dict[str, list[float]] = {"ema": [], "memoryless": [], "ideal": []}
            for seed in range(10):
                network = parse_network(changing_machines("lb10", 4, seed, CHANGING, every_s), "lb10.toml")
                bsp = updates_in_s(network, "bsp", noise, 12 * EVERY_S)
                for name, ratios in over.items():
                    ratios.append(bsp / updates_in_s(network, name, noise, 12 * EVERY_S))
            spread = (f"{np.median(one):.2f} [{min(one):.2f}, {max(one):.2f}]" for one in over.values())
            table.add_row(f"{noise:.0%}", str(every_s), *spread)
    console.print(table)


def times_table(title: str, run: BatchingFile, paper: dict[str, str]) -> Table:
    """A table of iteration times over BSP's and over the ideal; where accuracy is tested, updates to TARGET and last accuracy."""
    table = Table(title=title)
    for heading in ("", "iteration s", "over BSP", "x ideal", f"updates to {TARGET}", "accuracy", "paper, over BSP"):
        table.add_column(heading, justify="right")
    bsp_s = run.batchings["bsp"].iteration_s
    for name, one in run.batchings.items():
        reached = one.updates_to(TARGET)
        accuracy = "" if one.accuracy is None else f"{one.accuracy:.3f}"
        times = f"{one.iteration_s:.3f}", f"{one.iteration_s / bsp_s:.2f}", f"{one.slowest_s / one.ideal_s:.2f}"
        table.add_row(name, *times, str(reached or "-"), accuracy, paper.get(name, ""))
    return table


def changing_table(how: str, runs: dict[str, BatchingResult], base: str) -> Table:
    """A table of each batching's updates over the same seconds, since the machines change with the clock and not by iterations.

    how: for the title. runs: the results by batching. base: the one that stands for BSP.
    """
    made, until_s = updates_in_time(runs)
    table = Table(title=f"Fig. 10, {how}: cores drawn anew from {CHANGING[0]} to {CHANGING[1]} every {EVERY_S} s")
    for heading in ("", f"updates from {BEGUN_S} s to {until_s:.0f} s", "iteration s", "over BSP", "paper, over BSP"):
        table.add_column(heading, justify="right")
    for name, updates in made.items():
        paper = "" if name in ("bsp", "off", "ssp") else "0.38 to 0.42"
        iteration_s = (until_s - BEGUN_S) / updates
        table.add_row(name, f"{updates:.0f}", f"{iteration_s:.3f}", f"{made[base] / updates:.2f}", paper)
    return table


def main(out: Path, quick: bool) -> None:
    """Simulate, run the trainings that are missing, and print the tables."""
    console = Console(width=max(110, Console().width))
    figure_8(console)
    figure_9(console)
    figure_10_simulated(console)
    networks = out / "networks"
    changing = write_network(networks, "lb10", changing_machines("lb10", 4, 1, CHANGING, EVERY_S))
    run = compare_batchings(out / "figure-10", changing, "bsp,ssp,lb-bsp", 60 if quick else 120, *TRAINING)
    console.print(changing_table("whole batches", run.batchings, "bsp"))
    iterations, narx = (
        (60 if quick else 120),
        ("--predictor", "narx", "--predictor-models", str((out / "narx").resolve())),
    )
    parts = compare_batchings(out / "figure-10-micro", changing, "off,lb-bsp", iterations, *TRAINING, *MICRO).batchings
    compare_batchings(out / "figure-10-learn", changing, "lb-bsp", *LEARN, *MICRO, *narx)
    run = compare_batchings(out / "figure-10-narx", changing, "lb-bsp", iterations, *TRAINING, *MICRO, *narx)
    console.print(changing_table("micro-batches", {**parts, "lb-bsp, NARX": run.batchings["lb-bsp"]}, "off"))
    paper = {"homo": {}, "l2": {}, "l3": {"lb-bsp": "over 0.30 less than any other"}}
    for level, quotas in LEVELS.items():
        network = write_network(networks, f"lb12-{level}", uneven_network(f"lb12-{level}", quotas, 0.45))
        names = "bsp,lb-bsp" if quick and level != "l3" else "bsp,asp,ssp,lb-bsp"
        more = (*TRAINING, "--test-every", str(TEST_EVERY))
        run = compare_batchings(out / f"figure-12-{level}", network, names, 20 if quick else 60, *more)
        console.print(times_table(f"Fig. 12, {level}: cores {' '.join(map(str, quotas))}", run, paper[level]))


if __name__ == "__main__":
    sys.exit(run_script("lb-bsp", __doc__, main))
