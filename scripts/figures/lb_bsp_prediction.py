"""Repeats Table 3 of Chen et al. on seeded traces: how well each predictor foresees speeds, and how fast LB-BSP is with it.

    python scripts/figures/lb_bsp_prediction.py [--seeds 5] [--predictors ema,narx] [--out RUN_DIRECTORY]

WORKERS simulated workers on unequal machines follow traces (nalb/batching/traces.py). LB-BSP's Algorithm 1 sets their batch sizes
by each predictor in turn. An iteration lasts as long as its slowest worker, batch / speed. Networks begin to learn at iteration 500
and take up to 100 iterations. So all numbers are measured from iteration 600 on, and times also before 500. "foreseeable" knows the
model of the traces and the true resources as an iteration begins, and so bounds what can be predicted. "ideal" knows the speeds
themselves. BSP keeps equal sizes. The script writes RUN_DIRECTORY/prediction.json, and figure-11.png with NARX's predictions for
one worker over a hundred iterations (their Fig. 11).
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from kvstore_patch.roles.speed_networks import NETWORKS
from nalb.batching.decisions import Observation
from nalb.batching.lb_bsp import SpeedBalancer
from nalb.batching.schemes import PREDICTORS
from nalb.batching.sizes import Bounds
from nalb.batching.speed import NETWORK_AFTER, Predictor
from nalb.batching.traces import SpeedTrace, trace
from nalb.errors import InputError, NalbError
from nalb.planning.nodes import Floats

WORKERS = 4
ITERATIONS, MEASURED_FROM = 1200, 600
SHOWN = slice(900, 1000)  # the iterations in figure 11, of the first seed's first worker
BATCH = 512  # samples of an iteration over all workers; rounding to whole ones costs little beside prediction errors
FASTEST = (60.0, 120.0)  # the range of samples per second on an idle machine; machines differ by up to a factor of 2
PAPER = {  # RMSE, and iteration time over BSP's, from the paper's Table 3
    "memoryless": (11.85, 0.58),
    "ema": (7.85, 0.48),
    "arima": (9.67, 0.52),
    "rnn": (8.34, 0.49),
    "lstm": (9.19, 0.51),
    "narx": (4.78, 0.42),
}


class Watched:
    """A predictor that records another predictor's predictions and cost."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.predictions: list[float] = []  # after each observation, the prediction for the next iteration
        self.cost_s: list[float] = []

    def observe_speed(self, speed: float, cpu_share: float, memory_share: float) -> None:
        begun = time.perf_counter()
        self._predictor.observe_speed(speed, cpu_share, memory_share)
        self.cost_s.append(time.perf_counter() - begun)

    def predict(self) -> float | None:
        begun = time.perf_counter()
        prediction = self._predictor.predict()
        self.cost_s[-1] += time.perf_counter() - begun
        self.predictions.append(np.nan if prediction is None else prediction)
        return prediction


class Foreseeing:
    """A predictor that gives the speeds that the trace's model expects."""

    def __init__(self, trace: SpeedTrace) -> None:
        self._expected = iter(trace.foreseeable[1:])

    def observe_speed(self, speed: float, cpu_share: float, memory_share: float) -> None:
        pass

    def predict(self) -> float | None:
        return next(self._expected, None)


def train(traces: list[SpeedTrace], predictors: list[Watched]) -> dict[str, float]:
    """Simulate one job; return its measurements by name. RMSE is the mean over workers, as in the paper."""
    balancer = SpeedBalancer(Bounds.of(BATCH, len(traces)), predictors)
    sizes = (BATCH // len(traces),) * len(traces)
    iteration_s = []
    for k in range(ITERATIONS):
        times = [size / made.speed[k] for size, made in zip(sizes, traces, strict=True)]
        iteration_s.append(max(times))
        observations = [
            Observation(size, float(elapsed_s), float(made.cpu_share[k + 1]), float(made.memory_share[k + 1]))
            for size, elapsed_s, made in zip(sizes, times, traces, strict=True)
        ]
        sizes = balancer.update(observations).sizes or sizes
    errors = np.array([watched.predictions[:-1] for watched in predictors]) - [made.speed[1:] for made in traces]
    cost_s = np.array([watched.cost_s for watched in predictors])[:, MEASURED_FROM:]
    return {
        "rmse": float(np.sqrt(np.mean(errors[:, MEASURED_FROM - 1 :] ** 2, axis=1)).mean()),
        "iteration_s": float(np.mean(iteration_s[MEASURED_FROM:])),
        "early_iteration_s": float(np.mean(iteration_s[:NETWORK_AFTER])),
        "cost_mean_ms": float(cost_s.mean() * 1e3),
        "cost_most_ms": float(cost_s.max() * 1e3),
    }


class Measured(msgspec.Struct):
    """The content of prediction.json."""

    workers: int
    iterations: int
    measured_from: int  # the first iteration that is measured
    batch: int  # samples of an iteration
    seeds: list[int]
    ideal_s: list[float]  # the time of an iteration by seed; all other lists but those of figure 11 are by seed too
    early_ideal_s: list[float]
    bsp_s: list[float]
    figure_11: dict[str, list[float]]  # samples per second in iterations SHOWN
    predictors: dict[str, dict[str, list[float]]]  # the results of `train`, by predictor


def measure(seeds: int, names: list[str]) -> Measured:
    known: dict[str, Callable[[int], Predictor]] = {**PREDICTORS, **NETWORKS}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"--predictors {unknown[0]}: choose of {', '.join(known)}")
    made_by = {name: known[name] for name in known if name in {"ema", "narx", *names}}  # ema and narx always
    results: dict[str, list[dict[str, float]]] = {name: [] for name in [*made_by, "foreseeable"]}
    ideal_s, early_ideal_s, equal_s = [], [], []
    shown: dict[str, list[float]] = {}
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        traces = [trace(fastest, ITERATIONS, generator) for fastest in generator.uniform(*FASTEST, WORKERS)]
        speeds = np.array([made.speed for made in traces])
        ideal = BATCH / speeds.sum(axis=0)
        ideal_s.append(float(np.mean(ideal[MEASURED_FROM:])))
        early_ideal_s.append(float(np.mean(ideal[:NETWORK_AFTER])))
        equal_s.append(float(np.mean(BATCH / WORKERS / speeds[:, MEASURED_FROM:].min(axis=0))))
        for name, runs in results.items():
            watched = [
                Watched(made_by[name](seed * WORKERS + worker) if name in made_by else Foreseeing(made))
                for worker, made in enumerate(traces)
            ]
            runs.append(train(traces, watched))
            if seed == 0 and name in ("ema", "narx"):
                shown[name] = [float(one) for one in watched[0].predictions[SHOWN.start - 1 : SHOWN.stop - 1]]
                shown["actual"] = traces[0].speed[SHOWN].tolist()
            times = f"{runs[-1]['iteration_s'] / ideal_s[-1]:.3f} x ideal"
            print(f"seed {seed} of {seeds}  {name:12} RMSE {runs[-1]['rmse']:6.2f}  {times}", flush=True)
    predictors = {name: {field: [run[field] for run in runs] for field in runs[0]} for name, runs in results.items()}
    return Measured(
        WORKERS,
        ITERATIONS,
        MEASURED_FROM,
        BATCH,
        list(range(seeds)),
        ideal_s,
        early_ideal_s,
        equal_s,
        shown,
        predictors,
    )


def draw(record: Measured, path: Path) -> None:
    """Draw figure 11: one worker's speeds and the predictions of ema and narx."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, style in (("actual", "0.6"), ("ema", "C1"), ("narx", "C0")):
        axes.plot(range(SHOWN.start, SHOWN.stop), record.figure_11[name], color=style, label=name)
    axes.set(xlabel="iteration", ylabel="speed (samples/s)")
    axes.legend(frameon=False, ncols=3)
    figure.savefig(path, dpi=110)


def show(record: Measured, console: Console) -> None:
    table = Table(title=f"LB-BSP, {record.workers} simulated workers, {len(record.seeds)} seeds: median [least, most]")
    columns = (
        "predictor",
        "RMSE (samples/s)",
        "RMSE / EMA's",
        "iteration / ideal",
        f"the same before {NETWORK_AFTER}",
        "iteration / BSP",
        "ms per iteration",
    )
    for column in (*columns, "paper: RMSE / EMA's", "iteration / BSP"):
        table.add_column(column, justify="left" if column == "predictor" else "right")

    def spread(values: Floats, form: str) -> str:
        return f"{np.median(values):{form}} [{values.min():{form}}, {values.max():{form}}]"

    ideal, bsp = np.array(record.ideal_s), np.array(record.bsp_s)
    ema = np.array(record.predictors["ema"]["rmse"])
    for name, runs in record.predictors.items():
        rmse, elapsed = np.array(runs["rmse"]), np.array(runs["iteration_s"])
        cost = f"{np.mean(runs['cost_mean_ms']):.3f}, most {max(runs['cost_most_ms']):.0f}"
        paper = (f"{PAPER[name][0] / PAPER['ema'][0]:.2f}", f"{PAPER[name][1]:.2f}") if name in PAPER else ("", "")
        figures = (
            spread(rmse, ".2f"),
            spread(rmse / ema, ".2f"),
            spread(elapsed / ideal, ".3f"),
            spread(np.array(runs["early_iteration_s"]) / record.early_ideal_s, ".3f"),
            spread(elapsed / bsp, ".3f"),
        )
        table.add_row(name, *figures, "" if name == "foreseeable" else cost, *paper)
    table.add_row("ideal", "", "", "1", "1", spread(ideal / bsp, ".3f"), "", "", "")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, default=5, help="number of seeded sets of traces, about half a minute each"
    )
    parser.add_argument("--out", type=Path, help="run directory; by default a new one under runs/")
    parser.add_argument("--predictors", default=",".join([*PREDICTORS, *NETWORKS]), help="default: all six")
    options = parser.parse_args()
    out = options.out or Path("runs") / time.strftime("lb-bsp-prediction-%Y%m%d-%H%M%S")
    path = out / "prediction.json"
    try:
        if options.seeds < 1:
            raise InputError(f"--seeds {options.seeds}: give at least 1")
        if path.exists():
            raise InputError(f"{path} exists: name another directory with --out, or delete it")
        out.mkdir(parents=True, exist_ok=True)
        record = measure(options.seeds, options.predictors.split(","))
        path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    except (NalbError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, NalbError) else 1
    draw(record, out / "figure-11.png")
    show(record, Console(width=max(Console().width, 170)))
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
