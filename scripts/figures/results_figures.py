"""Draws the figures of docs/results from the run files in docs/results/data or from the tables of the pages.

    python scripts/figures/results_figures.py [--out DIRECTORY]

The script writes one SVG for each figure, by default into docs/results/figures, where the pages show them. The same input gives
the same file.
"""

import argparse
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import msgspec
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from experiments.stored import RESULTS, batchings, predictions, updates_in_time
from nalb.reporting.batching_file import BatchingFile, BatchingResult
from nalb.reporting.run_file import RunFile, median_s

FAMILIES = (
    "adsl",
    "asymmetric",
    "capped",
    "even",
    "heavy",
    "roles",
    "near",
    "shared-cores",
)  # without `changing`, whose rates have no single bound
SLICES = {
    "mobilenet-25": 56_000,
    "mobilenet-500": 56_000,
    "mobilenet-4000": 56_000,
    "resnet50-4000": 153_000,
}  # the first slice size in bytes, by run
JOINT = {
    "uneven4-joint": "uneven4-joint",
    "uneven4-both": "uneven4-both",
    "half-joint": "uneven4-joint, half",
    "half-both": "uneven4-both, half",
}
LAST = 6  # the last iterations of a comparison of batchings, which count
GREYS = ("0.85", "0.6", "0.35", "0.1")
MARKERS = ("o", "s", "^", "D")
STYLE = {
    "svg.hashsalt": "nalb",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def run_file(name: str) -> RunFile:
    """Read a stored run.json."""
    return msgspec.json.decode((RESULTS / "data" / f"{name}.json").read_bytes(), type=RunFile)


def last_iterations_s(name: str) -> dict[str, float]:
    """Median period of the slowest worker over the last iterations in seconds, by batching, from a stored batching.json."""
    run = msgspec.json.decode((RESULTS / "data" / f"joint-{name}.json").read_bytes(), type=BatchingFile)
    return {key: statistics.median(max(row) for row in one.period_s[-LAST:]) for key, one in run.batchings.items()}


def table(page: str, first: str) -> list[list[str]]:
    """The rows of the page's table whose first heading is `first`, headings first. Raises ValueError where there is none."""
    lines = (RESULTS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith(f"| {first} |")), None)
    if begin is None:
        raise ValueError(f"docs/results/{page}.md has no table that begins with {first!r}")
    end = next(i for i in range(begin, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
    rows = [[cell.strip(" *") for cell in line.strip("| ").split(" | ")] for line in lines[begin:end]]
    return [rows[0], *rows[2:]]


def number(cell: str) -> float:
    """The first number in a cell. Raises ValueError where there is none."""
    found = re.search(r"-?[\d,]*\.?\d+", cell)
    if found is None:
        raise ValueError(f"no number in the cell {cell!r}")
    return float(found.group().replace(",", ""))


def bars(axes: Axes, groups: list[str], series: dict[str, list[float]]) -> None:
    """Draw bars side by side, with a group for each word in `groups`."""
    width = 0.8 / len(series)
    for place, (name, values) in enumerate(series.items()):
        left = [i - 0.4 + width * (place + 0.5) for i in range(len(groups))]
        axes.bar(left, values, width, label=name, color=GREYS[place], edgecolor="0.2", linewidth=0.5)
    axes.set_xticks(range(len(groups)), groups)
    axes.legend(frameon=False, ncols=len(series))
    axes.margins(y=0.2)


def families(axes: Axes) -> None:
    """Draw the time over the bound, by family."""
    runs = {family: run_file(f"family-{family}") for family in FAMILIES}
    series = {
        scheme: [median_s(run.schemes[scheme].communication_s) / run.known_bound_s for run in runs.values()]
        for scheme in ("average", "oracle", "exact")
    }
    series["goodput bound"] = [run.goodput_factor for run in runs.values()]
    bars(axes, list(FAMILIES), series)
    axes.axhline(1, color="black", linestyle="--", linewidth=1)
    axes.set_ylabel("communication time / lossless bound")


def figure_4(axes: Axes) -> None:
    """Draw MobileNet's time over the bound on each network."""
    head, *rows = table("cai-2023", "network | bound")
    columns = {name.strip("`"): [number(row[place]) for row in rows] for place, name in enumerate(head)}
    series = {
        name: [took / bound for took, bound in zip(columns[name], columns["bound"], strict=True)]
        for name in ("stock", "average", "elastic", "exact")
    }
    bars(axes, [row[0] for row in rows], series)
    axes.axhline(1, color="black", linestyle="--", linewidth=1)
    axes.set_xlabel("network")
    axes.set_ylabel("communication time / lossless bound")


def figure_6(axes: Axes) -> None:
    """Draw the iteration time by slice size."""
    head, *rows = table("cai-2023", "Mbit/s | bound s")
    sizes = [number(cell) for cell in head[2:-1]]
    for row, marker in zip(rows, MARKERS, strict=False):
        times = [number(cell) for cell in row[2:-1]]
        axes.loglog(sizes, times, marker=marker, color="0.2", markersize=4, label=f"{row[0]} Mbit/s")
    by_alpha = next(size for size, cell in zip(sizes, head[2:-1], strict=True) if "alpha" in cell)
    axes.axvline(by_alpha, color="black", linestyle="--", linewidth=1, label="size by alpha")
    axes.set_xlabel("slice size (bytes)")
    axes.set_ylabel("iteration (s)")
    axes.set_yticks([3, 5, 10], ["3", "5", "10"])
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False)


def slice_sizes(axes: Axes) -> None:
    """Draw the communication time with equal shares over stock's, by slice size, with a line for each network."""
    for (name, first_bytes), marker in zip(SLICES.items(), MARKERS, strict=True):
        run = run_file(f"slices-{name}")
        times_s = {first_bytes: median_s(run.schemes["average"].communication_s)} if name != "resnet50-4000" else {}
        for scheme, result in run.schemes.items():
            if scheme.startswith("average@"):
                times_s[int(scheme.partition("@")[2])] = median_s(result.communication_s)
        stock_s = median_s(run.schemes["stock"].communication_s)
        sizes = sorted(times_s)
        model, mbps = name.split("-")
        label = f"{'MobileNet' if model == 'mobilenet' else 'ResNet-50'}, {mbps} Mbit/s"
        axes.semilogx(
            sizes, [times_s[s] / stock_s for s in sizes], marker=marker, color="0.2", markersize=4, label=label
        )
    axes.axhline(1, color="black", linestyle="--", linewidth=1)
    axes.set_xlabel("slice size (bytes)")
    axes.set_ylabel("communication time / stock MXNet's")
    axes.legend(frameon=False)


def tyagi_6(axes: Axes) -> None:
    """Draw dynamic batching's gain by H."""
    head, *rows = table("tyagi-2020", "H")
    levels = [number(row[0]) for row in rows]
    for name, marker in zip(("gain", "ideal gain"), MARKERS, strict=False):
        column = head.index(name)
        axes.plot(levels, [number(row[column]) for row in rows], marker=marker, color="0.2", markersize=4, label=name)
    paper = head.index("paper (ResNet)")
    told = [(number(row[0]), number(row[paper])) for row in rows if row[paper:] and row[paper].strip("| ")]
    axes.plot(*zip(*told, strict=True), "*", color="black", markersize=9, label="the paper's gain (ResNet)")
    axes.set_xlabel("H: largest machine's cores over smallest's")
    axes.set_ylabel("uniform time / dynamic time")
    axes.legend(frameon=False)


def both_balances(axes: Axes) -> None:
    """Draw the iteration time when the network alone, the machines alone, or both are balanced."""
    runs = [last_iterations_s(name) for name in JOINT]
    names = {"off@exact": "network alone: exact", "lb-bsp@average": "machines alone: lb-bsp", "joint": "both: joint"}
    bars(axes, list(JOINT.values()), {label: [run[name] for run in runs] for name, label in names.items()})
    axes.set_ylabel("iteration (s)")


def accuracy_over_time(axes: Axes, runs: dict[str, BatchingResult], names: dict[str, str]) -> None:
    """Draw tested accuracy over seconds of training, a line for each batching. names: by batching."""
    for (name, label), marker in zip(names.items(), MARKERS, strict=False):
        one = runs[name]
        times_s = [one.seconds_of(updates) for updates, _ in one.curve]
        axes.plot(
            times_s, [accuracy for _, accuracy in one.curve], marker=marker, color="0.2", markersize=4, label=label
        )
    axes.set_xlabel("time (s), with tests")
    axes.set_ylabel("accuracy")
    axes.legend(frameon=False)


def chen_7(axes: Axes) -> None:
    """Draw accuracy over time by scheme, slowest machine at 1/3."""
    names = {"bsp": "BSP", "asp": "ASP", "ssp": "SSP", "lb-bsp": "LB-BSP"}
    accuracy_over_time(axes, batchings("lb-bsp", "figure-12-l3"), names)


def chen_10(axes: Axes) -> None:
    """Draw the iteration time over BSP's on machines that change, beside the paper's (ResNet-32)."""
    made, _ = updates_in_time(batchings("lb-bsp", "figure-10"))
    here = [made["bsp"] / made[name] for name in ("bsp", "ssp", "lb-bsp")]
    bars(axes, ["BSP", "SSP", "LB-BSP"], {"here": here, "the paper, ResNet-32": [1.0, math.nan, 0.42]})
    axes.set_ylabel("iteration time / BSP's")


def chen_11(axes: Axes) -> None:
    """Draw one worker's speeds and the predictions of EMA and NARX."""
    found = predictions()
    assert found is not None, "drawn once its run is stored"
    shown = found.figure_11
    for name, label, style in (("actual", "actual", "-"), ("ema", "EMA", ":"), ("narx", "NARX", "--")):
        axes.plot(shown[name], style, color="0.6" if name == "actual" else "0.1", linewidth=1, label=label)
    axes.set_xlabel("iteration")
    axes.set_ylabel("speed (samples/s)")
    axes.legend(frameon=False, ncols=3)


def tyagi_7(axes: Axes) -> None:
    """Draw the gain over uniform batches on two unequal machines, beside the paper's (ResNet)."""
    runs = batchings("dynamic-batching", "figure-7")
    here = [runs["off"].iteration_s / runs[name].iteration_s for name in ("off", "static", "dynamic")]
    bars(axes, ["uniform", "static", "dynamic"], {"here": here, "the paper, ResNet: over": [1.0, 4.0, 4.0]})
    axes.set_ylabel("uniform time / time")


def yao_6(axes: Axes) -> None:
    """Draw accuracy over time under SSGD and LBB."""
    accuracy_over_time(axes, batchings("lbb", "figure-5"), {"off": "SSGD", "lbb": "LBB"})


FIGURES: dict[str, Callable[[Axes], None]] = {
    "families": families,
    "figure-4": figure_4,
    "figure-6": figure_6,
    "slice-sizes": slice_sizes,
    "tyagi-6": tyagi_6,
    "both-balances": both_balances,
}
OF_RUNS: dict[str, tuple[Callable[[Axes], None], object]] = {  # drawn once their runs are stored
    "chen-7": (chen_7, batchings("lb-bsp", "figure-12-l3")),
    "chen-10": (chen_10, batchings("lb-bsp", "figure-10")),
    "chen-11": (chen_11, predictions()),
    "tyagi-7": (tyagi_7, batchings("dynamic-batching", "figure-7")),
    "yao-6": (yao_6, batchings("lbb", "figure-5")),
}
FIGURES |= {name: fill for name, (fill, runs) in OF_RUNS.items() if runs}


def draw(folder: Path) -> None:
    """Draw every figure into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, fill in FIGURES.items():
            figure, axes = pyplot.subplots(figsize=(7.2, 3.2), layout="constrained")
            fill(axes)
            axes.grid(axis="y", color="0.9")
            axes.set_axisbelow(True)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main() -> None:
    """Parse the flags and draw the figures."""
    parser = argparse.ArgumentParser(description="draw the figures of docs/results")
    parser.add_argument("--out", metavar="DIRECTORY", type=Path, default=RESULTS / "figures")
    folder = parser.parse_args().out
    draw(folder)
    print(f"{len(FIGURES)} figures in {folder}")


if __name__ == "__main__":
    main()
