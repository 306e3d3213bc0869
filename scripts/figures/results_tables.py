"""Writes the tables of docs/results and README.md that are made of stored run files.

    python scripts/figures/results_tables.py                # write the tables into the pages again
    python scripts/figures/results_tables.py --take RUNS    # first copy the results in RUNS/*/ to docs/results/data

On a page such a table stands behind a comment with its name. Whatever the script writes, the tests write too and compare with the
page, so each number of such a table is that of its run files.
"""

import argparse
import itertools
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from experiments import paper_tables
from experiments.paper_tables import NOT_RUN, Rows
from experiments.speed import speed_of
from experiments.stored import RESULTS, stored
from fig4_speed import CAI, PAPER, SEEDS, TOGETHER, run_name
from fig6_slices import CALIBRATED, MODEL, STATES, sizes_by_variant
from judge_schemes import ESTIMATORS, STATIC, network_name
from main_results import FAST, ROWS, SLOW, TURNS, TWELVE, Row, name_of
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.slices import slice_bytes
from nalb.reporting.run_file import RunFile, SchemeResult, median_s
from plane_results import ALL
from plane_results import ROWS as ON_THE_PLANE
from precisions import AUTO, FORCED, steady_s
from precisions import ROWS as PRECISIONS
from results_figures import FAMILIES, FIGURES, JOINT, last_iterations_s, run_file

MARK = "<!-- made by scripts/figures/results_tables.py: {name} -->"
MARKED = re.compile(r"<!-- made by scripts/figures/results_tables\.py: ([\w-]+) -->\n\n((?:\|.*\n)*(?:\n!\[.*\n)?)")
README = "README"  # the page that stands at the top, not among the results
NETWORKS = {  # with what names do not say; rates in Mbit/s
    "wan6-static": "wan6-static (220, 150, 100, 180, 60, 200 Mbit/s)",
    "wan4-static": "wan4-static (200, 120, 160, 50 Mbit/s)",
    "wan6-asymmetric": "wan6-asymmetric (up and down differ, one pair capped)",
    TWELVE: "12 nodes (random, 20 to 220 Mbit/s)",
}
MODELS = {"mobilenet": "MobileNet", "resnet50": "ResNet-50", "alexnet": "AlexNet"}
RESULT_FILES = ("run.json", "batching.json", "throughput.json", "prediction.json")


def path_of(page: str) -> Path:
    """Where a page is."""
    return (RESULTS.parents[1] if page == README else RESULTS) / f"{page}.md"


def seconds(run: RunFile, scheme: str) -> float:
    """A scheme's communication time, the median after the warm-up."""
    return median_s(run.schemes[scheme].communication_s)


def families() -> Rows:
    """One network of each family, on page `networks`. Each iteration of `changing` has a bound of its own, which is not stored."""
    ratios = ("exact / oracle", "exact / average", "exact / bound", "exact / goodput bound")
    rows: Rows = [("family", "oracle s", "exact s", "average s", *ratios)]
    for family in (*FAMILIES, "changing"):
        run, is_static = run_file(f"family-{family}"), family != "changing"
        oracle_s, exact_s, average_s = (seconds(run, scheme) for scheme in ("oracle", "exact", "average"))
        over_bound = exact_s / run.known_bound_s
        bounds = [f"{over_bound:.2f}", f"{over_bound / run.goodput_factor:.2f}"] if is_static else ["", ""]
        name = family if is_static else f"{family}, {len(run.schemes['exact'].communication_s)} iterations"
        times = (f"{oracle_s:.3f}", f"{exact_s:.3f}", f"{average_s:.3f}")
        rows.append((name, *times, f"{exact_s / oracle_s:.3f}", f"{exact_s / average_s:.2f}", *bounds))
    return rows


def both_balances() -> Rows:
    """`joint` against either balance alone."""
    rows: Rows = [
        ("network", "equal sizes, `exact`", "`lb-bsp@average`", "`joint`", "`joint` over the better single one")
    ]
    for name, label in JOINT.items():
        took_s = last_iterations_s(name)
        network_s, machines_s, both_s = (took_s[one] for one in ("off@exact", "lb-bsp@average", "joint"))
        shown = f"{label} (n3 has 0.6 of its cores from 20 s on)" if name == "half-both" else label
        cells = (f"{one:.2f}" for one in (network_s, machines_s, both_s, both_s / min(network_s, machines_s)))
        rows.append((shown, *cells))
    return rows


def fixed_slices(runs: dict[str, str], sizes: Iterable[int], first: int | None) -> Rows:
    """Times by slice size. runs: labels by stored run; first: the size of slices in `average`; None: that one does not count."""
    sizes = list(sizes)
    rows: Rows = [("network, gradients", "stock", *(f"{size:,} bytes" for size in sizes))]
    for name, label in runs.items():
        run = run_file(f"slices-{name}")
        of_size = {int(one.partition("@")[2]): seconds(run, one) for one in run.schemes if one.startswith("average@")}
        if first is not None:
            of_size[first] = seconds(run, "average")
        best = min(of_size.values())
        cells = [_time(of_size[size], of_size[size] == best) if size in of_size else "" for size in sizes]
        rows.append((label, _time(seconds(run, "stock")), *cells))
    return rows


def _time(value_s: float, is_best: bool = False, digits: int = 3) -> str:
    text = f"{value_s:.{digits - 1 if value_s >= 10 else digits}f}"
    return f"**{text}**" if is_best else text


def slices_mobilenet() -> Rows:
    """Fixed slice sizes, MobileNet."""
    rates = {"25": "25 Mbit/s", "500": "500 Mbit/s", "4000": "4 Gbit/s"}
    labels = {f"mobilenet-{mbps}": f"{rate}, MobileNet" for mbps, rate in rates.items()}
    return fixed_slices(labels, (28_000, 56_000, 112_000, 224_000, 448_000, 900_000), 56_000)


def slices_resnet50() -> Rows:
    """Fixed slice sizes, ResNet-50."""
    return fixed_slices(
        {"resnet50-4000": "4 Gbit/s, ResNet-50"}, (152_000, 300_000, 600_000, 1_200_000, 2_400_000), None
    )


def slices_that_follow() -> Rows:
    """Slice sizes that follow from the rate, at 4 Gbit/s."""
    rows: Rows = [
        ("gradients", "stock", "`average`, first size kept", "`average`", "`exact`, first size kept", "`exact`")
    ]
    for model, label in (
        ("mobilenet", "MobileNet, 56,000 to 354,000 bytes"),
        ("resnet50", "ResNet-50, 153,000 to 1,104,000 bytes"),
    ):
        run = run_file(f"follow-{model}")
        fixed = next(one for one in run.schemes if one.startswith("average@")).partition("@")[2]
        stock_s = seconds(run, "stock")
        times = [seconds(run, one) for one in (f"average@{fixed}", "average", f"exact@{fixed}", "exact")]
        rows.append((label, f"{stock_s:.3f}", *(f"{one:.3f} ({one / stock_s:.2f})" for one in times)))
    return rows


def middle(times: Sequence[float], digits: int = 3) -> str:
    """The median of several runs, with the least and the most; of one run its time alone."""
    if not times:
        return NOT_RUN
    if len(times) == 1:
        return f"{times[0]:.{digits}f}"
    return f"{statistics.median(times):.{digits}f} [{min(times):.{digits}f}, {max(times):.{digits}f}]"


def by_network(folder: str, wanted: Sequence[Row], schemes: Sequence[str], own: str) -> Rows:
    """A framework's own way and nalb's schemes, medians of the stored runs; no cell for a scheme that a row has not."""
    rows: Rows = [("network, gradients", "bound", *schemes, f"{own} / exact")]
    for row in wanted:
        bound, times = of_turns(folder, row)
        measured = {scheme for part, _ in row.parts for scheme in part}
        cells = (middle(times.get(scheme, []), 2) if scheme in measured else "" for scheme in schemes)
        rows.append((f"{row.network}, {row.model}", bound, *cells, gain(times, own)))
    return rows


def headline() -> Rows:
    """README's table: both frameworks' own way and nalb, medians."""
    schemes = ("average", "aware", "exact")
    nalbs = (f"`{one}`" for one in schemes)
    head = ("network", "gradients", "framework", "bound", "its own", *nalbs, "its own / `exact`")
    rows: Rows = [head]
    for row, other in zip(ROWS, ON_THE_PLANE, strict=True):
        for framework, folder, own, one in (
            ("MXNet", "main-results", "stock", row),
            ("PyTorch", "plane-results", "gloo", other),
        ):
            bound, times = of_turns(folder, one)
            cells = (
                _time(statistics.median(times[name]), digits=2) if name in times else "" for name in (own, *schemes)
            )
            label = (NETWORKS[one.network], MODELS[one.model]) if one is row else ("", "")
            rows.append((*label, framework, bound, *cells, gain(times, own)))
    return rows


def of_turns(folder: str, row: Row) -> tuple[str, dict[str, list[float]]]:
    """The bound, and each scheme's times in the stored runs of a row; empty where none is stored."""
    times: dict[str, list[float]] = defaultdict(list)
    bound = ""
    for (schemes, _), turn in itertools.product(row.parts, TURNS):
        if path := stored(folder, name_of(row, schemes, turn)):
            run = msgspec.json.decode(path.read_bytes(), type=RunFile)
            bound = f"{run.known_bound_s:.2f}"
            for scheme in schemes:
                times[scheme].append(seconds(run, scheme))
    return bound, dict(times)


def gain(times: dict[str, list[float]], own: str) -> str:
    """How many times as fast `exact` is as the framework's own way."""
    if own not in times or "exact" not in times:
        return ""
    return f"{statistics.median(times[own]) / statistics.median(times['exact']):.2f}"


def runs_of_figure_4(model: str) -> dict[int, tuple[RunFile, dict[str, SchemeResult]]]:
    """The networks whose runs are all stored, by seed: a run, and the results of all schemes."""
    found = {}
    for seed in SEEDS:
        paths = [stored("fig4", run_name(model, f"fig4-n12-s{seed}", group)) for group in TOGETHER[model]]
        runs = [msgspec.json.decode(path.read_bytes(), type=RunFile) for path in paths if path is not None]
        if len(runs) == len(paths):
            results: dict[str, SchemeResult] = {}
            for run, group in zip(runs, TOGETHER[model], strict=True):
                results |= {CAI: run.schemes["aware"]} if group == (CAI,) else run.schemes
            found[seed] = runs[0], results
    return found


def cai_4() -> Rows:
    """Training speed over equal shares (Eq. 16), medians over the networks whose runs are stored."""
    shown = ("elastic", CAI, "aware", "exact")
    rows: Rows = [
        ("model", "networks", "paper: elastic", "paper: aware", "elastic", "Cai et al.", "nalb's `aware`", "`exact`")
    ]
    for model in TOGETHER:
        runs = runs_of_figure_4(model).values()
        speeds = [{one: speed_of(done, run.nodes) for one, done in results.items()} for run, results in runs]
        cells = [middle([one[scheme] / one["average"] for one in speeds], 2) for scheme in shown]
        rows.append((MODELS[model], str(len(runs)), *(f"{one:.2f}" for one in PAPER[model]), *cells))
    return rows


def cai_4_networks(model: str) -> Rows:
    """Seconds from first push to last pull on each network, the median of the iterations that count."""
    shown = ("stock", "average", "elastic", CAI, "aware", "exact")
    rows: Rows = [("network", "bound", "stock", "average", "elastic", "Cai et al.", "nalb's `aware`", "`exact`")]
    for seed, (run, results) in runs_of_figure_4(model).items():
        times = (_time(median_s(results[one].communication_s), digits=2) for one in shown)
        rows.append((str(seed), f"{run.known_bound_s:.2f}", *times))
    return rows


def cai_method() -> Rows:
    """Cai et al.'s own method beside nalb's `aware`."""
    rows: Rows = [("MobileNet on", "bound s", "Cai et al. s", "nalb's `aware` s", "Cai et al. over nalb's")]
    for net in ("wan6-static", "wan4-static", "fig4-n12-s1"):
        medians, cells, bound = {}, [], ""
        for estimator in ("paper", "capacity"):
            paths = [path for turn in (1, 2, 3) if (path := stored("cai-method", f"{net}-{estimator}-{turn}"))]
            runs = [msgspec.json.decode(path.read_bytes(), type=RunFile) for path in paths]
            times = [seconds(run, "aware") for run in runs]
            medians[estimator] = statistics.median(times) if times else math.nan
            cells.append(middle(times))
            bound = f"{runs[0].bound_s:.2f}" if runs else bound
        ratio = medians["paper"] / medians["capacity"]
        rows.append((net, bound, *cells, "" if math.isnan(ratio) else f"{ratio:.2f}"))
    return rows


def cai_6() -> Rows:
    """Iteration time by slice size (Figure 6), and at the size that alpha gives."""
    sizes, rows = sizes_by_variant(), []
    for seed, (low, high) in STATES.items():
        if (path := stored("fig6", f"{MODEL}-fig6-n12-s{seed}")) is None:
            continue
        run = msgspec.json.decode(path.read_bytes(), type=RunFile)
        sizes[CALIBRATED] = slice_bytes(run.model_bytes, run.nodes, FIRST_ALPHA_BYTES)
        times = {word: median_s(run.schemes[word].iteration_s) for word in sorted(sizes, key=lambda word: sizes[word])}
        best_s = min(times.values())
        over = f"{times[CALIBRATED] / best_s - 1:.1%}"
        cells = (_time(value_s, value_s == best_s) for value_s in times.values())
        rows.append((f"{low} to {high}", f"{run.known_bound_s:.2f}", *cells, over))
    shown = [
        f"{size:,.0f}{' (alpha)' * (word == CALIBRATED)}" for word, size in sorted(sizes.items(), key=lambda x: x[1])
    ]
    return [("Mbit/s", "bound s", *shown, "alpha over best"), *rows]


def judged() -> Rows:
    """Schemes and estimators on networks that do not change: communication time over the lossless bound."""
    names = [(scheme, estimator) for scheme in ("aware", "exact") for estimator in ESTIMATORS]
    of_estimator = {"capacity": "", "paper": ", estimator of Cai et al."}
    rows: Rows = [
        ("nodes, Mbit/s", "bound s", "`average`", *(f"`{scheme}`{of_estimator[one]}" for scheme, one in names))
    ]
    every: list[list[float]] = []
    for seed, (nodes, low, high) in enumerate(STATIC, 1):
        paths = [stored("judge", f"{network_name(seed, nodes, low)}-{one}") for one in ESTIMATORS]
        runs = [msgspec.json.decode(path.read_bytes(), type=RunFile) for path in paths if path is not None]
        if len(runs) == len(paths):
            by_estimator = dict(zip(ESTIMATORS, runs, strict=True))
            bound_s = runs[0].known_bound_s
            times = [seconds(runs[0], "average"), *(seconds(by_estimator[one], scheme) for scheme, one in names)]
            every.append([one / bound_s for one in times])
            rows.append((f"{nodes}, {low} to {high}", f"{bound_s:.2f}", *(f"{one:.2f}" for one in every[-1])))
    if every:
        rows.append(("median", "", *(f"{statistics.median(one):.2f}" for one in zip(*every, strict=True))))
    return rows


def precisions() -> Rows:
    """What each precision takes, as a part of the lossless bound."""
    schemes = (*FORCED, AUTO)
    rows: Rows = [("network, gradients", "lossless bound s", *(f"`{one}`" for one in schemes))]
    for row in PRECISIONS:
        path, bound, cells = stored("precisions", row.name), "", [NOT_RUN]
        if path is not None:
            run = msgspec.json.decode(path.read_bytes(), type=RunFile)
            bound = f"{run.known_bound_s:.2f}"
            parts = {one: steady_s(one, done) / run.known_bound_s for one, done in run.schemes.items()}
            cells = [f"{parts[one]:.2f}" if one in parts else "" for one in schemes]
        rows.append((f"{row.network}, {row.model}", bound, *cells))
    return rows


def fewer_bytes() -> Rows:
    """Ways to send fewer bytes, and what each takes beside nalb's float16 and int8."""
    rows: Rows = [("way", "seconds, medians", "over nalb's float16", "over nalb's int8")]
    if (path := stored("fewer-bytes", "wan6-static")) is None:
        return rows
    took_s = msgspec.convert(msgspec.json.decode(path.read_bytes())["took_s"], dict[str, list[list[float]]])
    medians = {way: [statistics.median(one) for one in rounds] for way, rounds in took_s.items()}
    ours = [statistics.median(medians[f"nalb, {one}"]) for one in ("float16", "int8")]
    for way, rounds in took_s.items():
        every = middle([one for times in rounds for one in times])  # iteration, with the least and the most
        rows.append((way, every, *(f"{statistics.median(medians[way]) / one:.2f}" for one in ours)))
    return rows


TABLES: dict[str, tuple[str, Callable[[], Rows]]] = {  # by name: the page, and what makes the rows
    "families": ("networks", families),
    "both-balances": ("both-balances", both_balances),
    "slices-mobilenet": ("slice-sizes", slices_mobilenet),
    "slices-resnet50": ("slice-sizes", slices_resnet50),
    "slices-that-follow": ("slice-sizes", slices_that_follow),
    "headline": (README, headline),
    "main-results": ("peers", lambda: by_network("main-results", ROWS, (*SLOW, *FAST), "stock")),
    "plane-results": ("peers", lambda: by_network("plane-results", ON_THE_PLANE, ALL, "gloo")),
    "cai-method": ("cai-2023", cai_method),
    "cai-4": ("cai-2023", cai_4),
    "cai-4-mobilenet": ("cai-2023", lambda: cai_4_networks("mobilenet")),
    "cai-4-resnet50": ("cai-2023", lambda: cai_4_networks("resnet50")),
    "cai-4-alexnet": ("cai-2023", lambda: cai_4_networks("alexnet")),
    "cai-6": ("cai-2023", cai_6),
    "judged": ("cai-2023", judged),
    "precisions": ("fewer-bytes", precisions),
    "fewer-bytes": ("fewer-bytes", fewer_bytes),
    "chen-6": ("chen-2021", paper_tables.chen_6),
    "chen-11": ("chen-2021", paper_tables.chen_11),
    "chen-12": ("chen-2021", paper_tables.chen_12),
    "chen-10": ("chen-2021", paper_tables.chen_10),
    "tyagi-5": ("tyagi-2020", paper_tables.tyagi_5),
    "tyagi-5a": ("tyagi-2020", lambda: paper_tables.tyagi_5("figure-5a")),
    "tyagi-7-gpu": ("tyagi-2020", paper_tables.tyagi_7_gpu),
    "tyagi-6": ("tyagi-2020", paper_tables.tyagi_6),
    "tyagi-7": ("tyagi-2020", paper_tables.tyagi_7),
    "yao-2": ("yao-2023", paper_tables.yao_2),
    "yao-4": ("yao-2023", paper_tables.yao_4),
}


PICTURES = {  # by table: the figure behind it, and what it shows
    "both-balances": ("both-balances", "Iteration time of the three schemes"),
    "slices-resnet50": ("slice-sizes", "Communication time over slice size"),
    "cai-4-mobilenet": ("figure-4", "Communication time over the bound on each network"),
    "cai-6": ("figure-6", "Iteration time over slice size"),
    "chen-6": ("chen-7", "Accuracy over time by scheme"),
    "chen-10": ("chen-10", "Time of an iteration over BSP's, on machines that change"),
    "chen-11": ("chen-11", "Speeds of one worker, actual and predicted"),
    "tyagi-6": ("tyagi-6", "Gain of dynamic batching over H"),
    "tyagi-7": ("tyagi-7", "Gain over uniform batches on two unequal machines"),
    "yao-4": ("yao-6", "Accuracy over time under SSGD and LBB"),
}


def block(name: str) -> str:
    """What stands behind a table's comment: the table, and its figure where that can be drawn."""
    figure, meaning = PICTURES.get(name, ("", ""))
    picture = f"\n![{meaning}](figures/{figure}.svg)\n" if figure in FIGURES else ""
    return markdown(TABLES[name][1]()) + picture


def markdown(rows: Rows) -> str:
    """The table's lines."""
    width = len(rows[0])
    filled = [[*row, *[""] * (width - len(row))] for row in rows]
    head, *rest = [re.sub(" +", " ", f"| {' | '.join(cells)} |\n") for cells in filled]
    return "".join([head, "|---" * width + "|\n", *rest])


def page_with_tables(page: str, text: str) -> str:
    """The page's text with each of its tables made again. Raises ValueError for a table that is unknown, or not on the page."""
    wanted = {name for name, (where, _) in TABLES.items() if where == page}
    shown = [match[1] for match in MARKED.finditer(text)]
    if sorted(shown) != sorted(wanted):
        raise ValueError(f"page {page} shows the tables {sorted(shown)}, and {sorted(wanted)} belong there")
    return MARKED.sub(lambda match: f"{MARK.format(name=match[1])}\n\n{block(match[1])}", text)


def take(runs: Path) -> int:
    """Copy the results of a script's runs to docs/results/data/NAME, NAME being that of their folder; return how many.

    Numbers are rounded to millionths, so times to microseconds: the files stay small.
    """
    folder = RESULTS / "data" / runs.name
    found = [path for one in sorted(runs.iterdir()) for path in (one / name for name in RESULT_FILES) if path.exists()]
    folder.mkdir(exist_ok=True)
    for path in found:
        result = msgspec.json.encode(rounded(msgspec.json.decode(path.read_bytes())))
        (folder / f"{path.parent.name}.json").write_bytes(result + b"\n")
    return len(found)


def rounded(value: Any) -> Any:
    """A decoded JSON value with its numbers rounded."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def main() -> int:
    """Parse the flags, copy what is asked for, and write the tables."""
    parser = argparse.ArgumentParser(
        description="write the tables of docs/results and README.md that are made of stored run files"
    )
    parser.add_argument("--take", metavar="RUNS", type=Path, help="copy the results in RUNS/*/ first")
    args = parser.parse_args()
    if args.take is not None:
        print(f"{take(args.take)} results of {args.take}")
    for page in sorted({page for page, _ in TABLES.values()}):
        path = path_of(page)
        path.write_text(page_with_tables(page, path.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{len(TABLES)} tables in {RESULTS} and README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
