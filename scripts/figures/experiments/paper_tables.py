"""Makes the tables of Chen et al., Tyagi and Sharma, and Yao et al. from stored results of their scripts' trainings.

A cell without a stored result says so.
"""

import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from experiments.stored import batchings, predictions, stored, updates_in_time
from nalb.reporting.batching_file import BatchingResult

EPOCH_SAMPLES = 60_000  # of Fashion-MNIST
Rows = list[Sequence[str]]  # of cells, headings first
NOT_RUN = "not run"


def chen_6() -> Rows:
    """Time and accuracy by scheme, over BSP's. Under ASP and SSP rank 0's own updates count, of the slowest worker."""
    here = ("time of an update", "updates to 0.70", "time to 0.70", "last accuracy")
    rows: Rows = [("over BSP's", *here, "paper: time", "updates", "accuracy")]
    paper = {
        "bsp": ("1", "1", "0.92"),
        "asp": ("15 % over LB-BSP (Inception-V3)", "up to 4.76", "below 0.88"),
        "ssp": ("over LB-BSP", "up to 2.05", "below 0.88"),
        "lb-bsp": ("0.63", "1", "0.92"),
    }
    runs = batchings("lb-bsp", "figure-12-l3")
    for name, told in paper.items():
        cells = [NOT_RUN, "", "", ""]
        if name in runs:
            one, bsp = runs[name], runs["bsp"]
            found, needed = ((run.updates_to(0.70), run.seconds_to(0.70)) for run in (one, bsp))
            over = [f"{mine / its:.2f}" if mine and its else "never" for mine, its in zip(found, needed, strict=True)]
            cells = [f"{one.iteration_s / bsp.iteration_s:.2f}", *over, f"{one.curve[-1][1]:.3f}"]
        rows.append((name, *cells, *told))
    return rows


def chen_11() -> Rows:
    """Errors of predicted speeds: of all workers over the measured part of the training, and in what the figure shows."""
    rows: Rows = [
        ("", "RMSE, samples/s", "over EMA's", "in the figure's iterations", "paper: RMSE", "over EMA's"),
    ]
    found = predictions()
    for name, paper, over in (("ema", "7.85", "1"), ("narx", "4.78", "0.61")):
        cells = (NOT_RUN, "", "")
        if found is not None:
            errors = {one: statistics.mean(found.predictors[one]["rmse"]) for one in ("ema", name)}
            shown = np.array(found.figure_11[name]) - np.array(found.figure_11["actual"])
            in_figure = float(np.sqrt(np.mean(shown**2)))
            cells = (f"{errors[name]:.2f}", f"{errors[name] / errors['ema']:.2f}", f"{in_figure:.2f}")
        rows.append((name.upper(), *cells, paper, over))
    return rows


def chen_10() -> Rows:
    """Updates on machines that change, over the same seconds of each run."""
    rows: Rows = [("", "updates", "time of an iteration over BSP's", "paper")]
    lb_bsp = "0.38 (SVM), 0.42 (ResNet-32)"
    whole = {"bsp": "1", "ssp": "hardly less than 1", "lb-bsp": lb_bsp}
    rows += _updates(batchings("lb-bsp", "figure-10"), whole, "bsp", "whole batches")
    parts = batchings("lb-bsp", "figure-10-micro")
    if narx := batchings("lb-bsp", "figure-10-narx"):
        parts["lb-bsp, NARX"] = narx["lb-bsp"]
    return rows + _updates(parts, {"off": "1", "lb-bsp": lb_bsp, "lb-bsp, NARX": lb_bsp}, "off", "micro-batches")


def _updates(runs: dict[str, BatchingResult], paper: dict[str, str], base: str, how: str) -> Rows:
    made, _ = updates_in_time(runs)
    rows: Rows = []
    for name, told in paper.items():
        cells = (f"{made[name]:.0f}", f"{made[base] / made[name]:.2f}") if name in made else (NOT_RUN, "")
        rows.append((f"{how}, {name}", *cells, told))
    return rows


def chen_12() -> Rows:
    """All schemes on machines of three degrees of heterogeneity."""
    rows: Rows = [("", "iteration s", "over BSP", "x ideal", "last accuracy")]
    for level, label in (("homo", "alike"), ("l2", "1/2"), ("l3", "1/3")):
        runs = batchings("lb-bsp", f"figure-12-{level}")
        for name in ("bsp", "asp", "ssp", "lb-bsp"):
            cells = [NOT_RUN, "", "", ""]
            if name in runs:
                one, bsp_s = runs[name], runs["bsp"].iteration_s
                times = [
                    f"{one.iteration_s:.3f}",
                    f"{one.iteration_s / bsp_s:.2f}",
                    f"{one.slowest_s / one.ideal_s:.2f}",
                ]
                cells = [*times, f"{one.curve[-1][1]:.3f}"]
            rows.append((f"{label}, {name}", *cells))
    return rows


def tyagi_5(name: str = "figure-5") -> Rows:
    """Images per second of one worker by batch size: on a CPU, or in figure-5a on a GPU."""
    path = stored("dynamic-batching", name)
    per_s = {} if path is None else msgspec.json.decode(path.read_bytes(), type=dict[int, float], strict=False)
    rows: Rows = [("batch", *(f"{size:,}" for size in per_s))]
    rows.append(("images a second", *(f"{one:,.0f}" for one in per_s.values())))
    return rows


def tyagi_7_gpu() -> Rows:
    """A GPU beside a CPU."""
    path = stored("dynamic-batching", "figure-7-gpu")
    took_s = {} if path is None else msgspec.json.decode(path.read_bytes(), type=dict[str, float])
    rows: Rows = [("", "iteration s", "uniform over it", "paper, ResNet")]
    for name, paper in (("off", "1"), ("static", "over 4"), ("dynamic", "as static")):
        cells = (f"{took_s[name]:.3f}", f"{took_s['off'] / took_s[name]:.2f}") if name in took_s else (NOT_RUN, "")
        rows.append((name, *cells, paper))
    return rows


def tyagi_6() -> Rows:
    """Uniform and dynamic batches by heterogeneity; uniform ones over those of equal machines are figure 1."""
    rows: Rows = [("H", "uniform s", "over H = 1 (figure 1)", "dynamic s", "gain", "ideal gain", "paper (ResNet)")]
    equal = batchings("dynamic-batching", "figure-6-1")
    told = {1: ("1.0", ""), 2: ("1.5", "2.0"), 4: ("2.5", ""), 6: ("3.5", ""), 8: ("4.5", ""), 10: ("5.5", "2.4")}
    for level, (ideal, paper) in told.items():
        runs = batchings("dynamic-batching", f"figure-6-{level}")
        cells = [NOT_RUN, "", "", ""]
        if runs and equal:
            uniform_s, dynamic_s = runs["off"].iteration_s, runs["dynamic"].iteration_s
            over = uniform_s / equal["off"].iteration_s
            cells = [f"{uniform_s:.3f}", f"{over:.2f}", f"{dynamic_s:.3f}", f"{uniform_s / dynamic_s:.2f}"]
        rows.append((str(level), *cells, ideal, paper))
    return rows


def tyagi_7() -> Rows:
    """Two machines whose cores are as the paper's GPU and CPU."""
    rows: Rows = [("", "iteration s", "uniform over it", "paper, ResNet", "paper, MNIST CNN")]
    runs = batchings("dynamic-batching", "figure-7")
    for name, *paper in (("off", "1", "1"), ("static", "over 4", "1.2"), ("dynamic", "as static", "3 % over static")):
        cells = (NOT_RUN, "")
        if name in runs:
            cells = (f"{runs[name].iteration_s:.3f}", f"{runs['off'].iteration_s / runs[name].iteration_s:.2f}")
        rows.append((name, *cells, *paper))
    return rows


def yao_2() -> Rows:
    """Computing of the slowest machine with equal sizes and with LBB's."""
    rows: Rows = [("", "slowest machine, ms", "x ideal", "last sizes", "paper, ms")]
    runs = batchings("lbb", "table-2")
    for name, label, paper in (("off", "equal sizes", "392.92"), ("lbb", "`lbb`", "104.94")):
        cells = [NOT_RUN, "", ""]
        if name in runs:
            one = runs[name]
            sizes = " ".join(map(str, one.sizes[-1]))
            cells = [f"{one.slowest_s * 1e3:.0f}", f"{one.slowest_s / one.ideal_s:.2f}", sizes]
        rows.append((label, *cells, paper))
    return rows


def yao_4() -> Rows:
    """An epoch's time, and accuracy by updates and by time, under SSGD and LBB."""
    here = ("epoch s", "over SSGD's", "accuracy by updates", "time to 0.70 over SSGD's")
    rows: Rows = [("", *here, "paper: epoch s", "over SSGD's")]
    runs = batchings("lbb", "figure-5")
    for name, label, *paper in (("off", "SSGD", "62.44", "1"), ("lbb", "LBB", "22.12", "0.35")):
        cells = [NOT_RUN, "", "", ""]
        if name in runs:
            one, equal = runs[name], runs["off"]
            epoch_s = one.iteration_s * EPOCH_SAMPLES / sum(one.sizes[0])
            mine_s, its_s = one.seconds_to(0.70), equal.seconds_to(0.70)
            time = mine_s / its_s if mine_s and its_s else math.nan
            shown = ", ".join(f"{updates}: {accuracy:.3f}" for updates, accuracy in one.curve)
            cells = [f"{epoch_s:.2f}", f"{one.iteration_s / equal.iteration_s:.2f}", shown, f"{time:.2f}"]
        rows.append((label, *cells, *paper))
    return rows
