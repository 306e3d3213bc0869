"""Repeats Fela's figures (Geng et al., 2020): python scripts/figures/fela_figures.py --simulated [--only 6,8] [--quick]

The simulation has the paper's scale: 8 nodes with a K40c each, 10 Gbit/s, VGG19 and GoogLeNet, totals of 64 to 1024 samples.
nalb/simulation/profiles.py says what was measured of the models and what is assumed. `fela` knows its network and workers
(docs/fela.md); `fela-paper` follows the paper's rules alone.

1      the batch at which layers compute at full speed
6      the weights and |S| that tuning ends with, and the time that the best case saves over the worst
7      the gains of ADS and HF; with those of 6 they make Table III
8      throughput over the baselines while no worker sleeps
9, 10  throughput and delay with workers that sleep by turns, or with a probability
links  unequal links: fela over fela-paper
scale  1,000 nodes
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from rich.console import Console
from rich.table import Table

from nalb.planning.nodes import Capacities
from nalb.simulation.parallel import train, train_fela, tune_fela
from nalb.simulation.profiles import DENSE_THRESHOLD, K40C, PROFILES, Profile
from nalb.simulation.tokens import Machines, Simulated
from nalb.tokens.partition import threshold_batch
from nalb.tokens.policies import FELA, FELA_BY_PAPER
from nalb.tokens.stragglers import Stragglers
from nalb.tokens.tuning import Configuration, Tuner, divisors, weight_cases
from nalb.units import mbps_to_bytes_per_s

WORKERS, RATE = 8, 1e4 * mbps_to_bytes_per_s(1)
TOTALS = (64, 128, 256, 512, 1024)
SAY_TOTALS = (64, 256, 1024)  # the totals of figures 9 and 10; the paper does not give its total
BASELINES = ("dp", "mp", "hp")
RULES = (FELA, FELA_BY_PAPER)
JITTER = 0.05  # the deviation of the logarithm of a token's time, in the runs with jitter
STEADY = 5  # iterations of runs without randomness, which are all alike from the second on
# Iterations, enough for all cases of tuning. `fela-paper` gets the later phases too, so that the rules alone differ; figure 8 also
# has it with the paper's own two, as a job has it.
TUNING, PHASES, PAPER_PHASES = 160, 4, 2
MODELS: dict[str, Profile] = {name: make() for name, make in PROFILES.items()}

SLEEPS_S = {"vgg19": (2, 4, 6, 8, 10), "googlenet": (1, 2, 3, 4, 5)}
CHANCES, CHANCE_S = (0.1, 0.2, 0.3, 0.4, 0.5), {"vgg19": 6, "googlenet": 3}
# Fela's gains in throughput over each baseline, by the paper: in percent, or as a factor such as 3.23x
GAINS = {
    ("8", "vgg19"): {"dp": "9.98 %-3.23x", "mp": "5.18-8.12x", "hp": "15.77-49.65 %"},
    ("8", "googlenet"): {"dp": "13.25 %-2.15x", "mp": "3.63-12.22x", "hp": "19.01 %-1.85x"},
    ("9", "vgg19"): {"dp": "28.6-60.0 %", "mp": "3.01-4.87x", "hp": "41.61-84.16 %"},
    ("9", "googlenet"): {"dp": "7.27-32.87 %", "mp": "90.13 %-1.78x", "hp": "9.72-45.19 %"},
    ("10", "vgg19"): {"dp": "19.58-33.91 %", "mp": "2.70-4.25x", "hp": "27.13-80.29 %"},
    ("10", "googlenet"): {"dp": "22.94-43.73 %", "mp": "1.27-1.71x", "hp": "23.28-43.46 %"},
}
LESS_DELAY = {
    ("9", "vgg19"): {"dp": "30.35-68.19 %", "hp": "26.00-64.86 %"},
    ("9", "googlenet"): {"dp": "30.35-68.19 %", "hp": "12.56-46.01 %"},
    ("10", "vgg19"): {"dp": "23.23-51.36 %", "hp": "6.97-65.12 %"},
    ("10", "googlenet"): {"dp": "27.62-46.22 %", "hp": "25.79-44.39 %"},
}


def machines(jitter: float = 0.0, seed: int = 0) -> Machines:
    """The paper's eight machines, with the given jitter."""
    return replace(Machines.equal(WORKERS, RATE), jitter=jitter, seed=seed)


@cache
def tuned(model: str, total: int, rules: str = FELA, phases: int = PHASES) -> Tuner:
    """The tuner after a training in which it has tuned."""
    return tune_fela(MODELS[model], machines(), total, TUNING, rules, phases)[1]


@cache
def simulated(
    how: str, model: str, total: int, iterations: int, sleep: str | None = None, without: tuple[str, ...] = ()
) -> Simulated:
    """Simulate a training. how: one of BASELINES or RULES; Fela has the configuration that tuning ended with."""
    stragglers = Stragglers.read(sleep).sleep_s if sleep else None
    if how in BASELINES:
        return train(how, MODELS[model], machines(), total, iterations, stragglers)
    best = tuned(model, total, how).best
    return train_fela(MODELS[model], machines(), total, best, iterations, stragglers, how, without)


def figure_1(console: Console) -> None:
    """Print the batch of full speed for the layers that the authors measured, and the one assumed for dense layers."""
    table = Table(
        "layers", "batch of full speed", "paper", title="Fig. 1: smallest batch at 92 % of the peak throughput"
    )
    paper = {"64@224 x2": "16", "512@14 x2": "64"}
    for name, curve in K40C.items():
        table.add_row(name, str(threshold_batch(curve)), paper.get(name, ""))
    table.add_row("dense, assumed", str(DENSE_THRESHOLD), "2048")
    console.print(table)


def figure_6(console: Console) -> None:
    """Print the result of tuning phase by phase, and the best of all 40 cases, with and without jitter."""
    table = Table(
        "total", "rules", "phase 1", "saves", "phase 2", "saves", "both save", "ends with", "s", "best of 40", "s",
        "best of 40, jitter", "tuning costs",
        title="Fig. 6: VGG19. Paper: 64 {1,1,4}, |S| = 1; 1024 {1,8,8}, |S| = 8; saves 8.51-51.69 %, 5.31-41.25 %, 8.51-66.78 %",
    )  # fmt: skip
    for total, rules in itertools.product(TOTALS, RULES):
        run, tuner = tune_fela(MODELS["vgg19"], machines(), total, TUNING, rules, PHASES)
        seconds = tuner.measured_s
        first = {case: s for case, s in seconds.items() if len(case.subset) == WORKERS}
        weights = min(first, key=first.__getitem__).weights
        second = {case: s for case, s in seconds.items() if case.weights == weights and not case.is_apart}
        everything = {**first, **second}
        all_s = {case: one_case(total, case, rules) for case in all_cases()}
        best, jittered = min(all_s, key=all_s.__getitem__), best_with_jitter(total, all_s, rules)
        tuning = 5 * len(seconds)
        cost = run.ends_s[tuning - 1] / tuning / seconds[tuner.best] - 1
        ended = text_of(tuner.best.weights, tuner.best.subset) + ", apart" * tuner.best.is_apart
        table.add_row(
            str(total), rules, text_of(weights), saving(first), f"{len(min(second, key=second.__getitem__).subset)}",
            saving(second), saving(everything), ended, f"{seconds[tuner.best]:.3f}",
            text_of(best.weights, best.subset), f"{all_s[best]:.3f}", text_of(jittered.weights, jittered.subset),
            f"{cost:.0%} of {tuning} iterations",
        )  # fmt: skip
    console.print(table)


def all_cases() -> list[Configuration]:
    """All configurations: each choice of weights with each |S|."""
    every = weight_cases(divisors(WORKERS), 3, WORKERS)
    return [Configuration(weights, tuple(range(size))) for weights in every for size in divisors(WORKERS)]


@cache
def one_case(
    total: int,
    case: Configuration,
    rules: str,
    jitter: float = 0.0,
    iterations: int = STEADY,
    without: tuple[str, ...] = (),
) -> float:
    """Seconds of an iteration of VGG19 under one configuration."""
    return train_fela(MODELS["vgg19"], machines(jitter), total, case, iterations, None, rules, without).iteration_s()


def best_with_jitter(total: int, all_s: dict[Configuration, float], rules: str) -> Configuration:
    """The best case by 60 iterations with jitter, among the cases that are within 5 % of the best without jitter."""
    near = [case for case, seconds in all_s.items() if seconds < 1.05 * min(all_s.values())]
    return min(near, key=lambda case: one_case(total, case, rules, JITTER, 60))


def figure_7(console: Console) -> None:
    """Print the gains of ADS, HF, weights and CTD by the paper's rules, after tuning: Fig. 7 and Table III."""
    table = Table(
        "total", "ADS", "ADS, weights 1,1,1", "HF", "weights", "CTD",
        title="Fig. 7, Table III: what each gains, VGG19, by the paper's rules",
    )  # fmt: skip
    for total in TOTALS:
        usual = simulated(FELA_BY_PAPER, "vgg19", total, STEADY)
        best = tuned("vgg19", total, FELA_BY_PAPER).best
        usual_s, ones = usual.iteration_s(), Configuration((1, 1, 1), best.subset)
        without_ads = ("depth_first", "by_locality")
        gains = [
            simulated(FELA_BY_PAPER, "vgg19", total, STEADY, without=without_ads).iteration_s() / usual_s,
            one_case(total, ones, FELA_BY_PAPER, without=without_ads) / one_case(total, ones, FELA_BY_PAPER),
            simulated(FELA_BY_PAPER, "vgg19", total, STEADY, without=("own_buckets",)).iteration_s() / usual_s,
            one_case(total, ones, FELA_BY_PAPER) / usual_s,
            one_case(total, Configuration(best.weights, tuple(range(WORKERS))), FELA_BY_PAPER) / usual_s,
        ]
        table.add_row(str(total), *(f"{one - 1:+.1%}" for one in gains))
    table.add_row("paper", "1.64-8.21 %", "", "44.80-96.30 %", "8.51-51.69 %", "5.31-41.25 %")
    console.print(table)


def figure_8(console: Console) -> None:
    """Print the throughput by total, and the gain over each baseline."""
    for model in MODELS:
        table = Table(
            "total", *BASELINES, *RULES, f"{FELA_BY_PAPER}, {PAPER_PHASES} phases", *(f"over {one}" for one in BASELINES),
            title=f"Fig. 8, {model}: samples/s",
        )  # fmt: skip
        ratios: dict[str, list[float]] = {one: [] for one in BASELINES}
        for total in TOTALS:
            rates = {how: total / simulated(how, model, total, STEADY).iteration_s() for how in (*BASELINES, *RULES)}
            for one in BASELINES:
                ratios[one].append(rates[FELA] / rates[one])
            by_paper = tuned(model, total, FELA_BY_PAPER, PAPER_PHASES).best
            by_paper_s = train_fela(
                MODELS[model], machines(), total, by_paper, STEADY, None, FELA_BY_PAPER
            ).iteration_s()
            table.add_row(
                str(total),
                *(f"{rate:.1f}" for rate in rates.values()),
                f"{total / by_paper_s:.1f}",
                *(f"{ratios[one][-1]:.2f}" for one in BASELINES),
            )
        table.add_row("gains", *[""] * 6, *(spread(ratios[one]) for one in BASELINES))
        table.add_row("paper", *[""] * 6, *GAINS["8", model].values())
        console.print(table)


def stragglers(
    console: Console, figure: str, model: str, settings: Sequence[tuple[str, list[str]]], iterations: int
) -> None:
    """Print the delays and gains with workers that sleep. settings: each a name, and the sleeps over which the mean is taken."""
    title = (
        f"Fig. {figure}, {model}: added delay of an iteration in s, throughput of fela over each, delay less than each"
    )
    table = Table(
        "total",
        "",
        *BASELINES,
        *RULES,
        *(f"over {one}" for one in BASELINES),
        "less than dp",
        "less than hp",
        title=title,
    )
    for total in SAY_TOTALS:
        ratios: dict[str, list[float]] = {one: [] for one in (*BASELINES, "less dp", "less hp")}
        for name, sleeps in settings:
            took = {how: mean_s(how, model, total, iterations, sleeps) for how in (*BASELINES, *RULES)}
            delay = {
                how: s - simulated(how, model, total, iterations).ends_s[-1] / iterations for how, s in took.items()
            }
            for one in BASELINES:
                ratios[one].append(took[one] / took[FELA])
            for one in ("dp", "hp"):
                ratios[f"less {one}"].append(1 - delay[FELA] / delay[one])
            last = [f"{ratios[one][-1]:.2f}" for one in BASELINES] + [
                f"{ratios[f'less {one}'][-1]:.0%}" for one in ("dp", "hp")
            ]
            table.add_row(str(total), name, *(f"{one:.2f}" for one in delay.values()), *last)
        less = [f"{min(ratios[one]):.0%} to {max(ratios[one]):.0%}" for one in ("less dp", "less hp")]
        table.add_row("gains", "", *[""] * 5, *(spread(ratios[one]) for one in BASELINES), *less, end_section=True)
    table.add_row("paper", "", *[""] * 5, *GAINS[figure, model].values(), *LESS_DELAY[figure, model].values())
    console.print(table)


def mean_s(how: str, model: str, total: int, iterations: int, sleeps: Iterable[str]) -> float:
    """Mean seconds of an iteration, the first included. PID in Eq. 4 of Geng et al. is the difference of two of these."""
    return statistics.mean(simulated(how, model, total, iterations, one).ends_s[-1] / iterations for one in sleeps)


def figure_9(console: Console, quick: bool) -> None:
    """Print Fig. 9: in iteration k, worker k mod 8 sleeps."""
    for model, delays in SLEEPS_S.items():
        settings = [(f"{d} s", [f"round-robin:{d}"]) for d in delays]
        stragglers(console, "9", model, settings, WORKERS * (2 if quick else 4))


def figure_10(console: Console, quick: bool) -> None:
    """Print Fig. 10: each worker sleeps with a probability; the mean over seeds."""
    for model, d in CHANCE_S.items():
        settings = [(f"p = {p}", [f"probability:{p}:{d}:{seed}" for seed in range(1 if quick else 3)]) for p in CHANCES]
        stragglers(console, "10", model, settings, 16 if quick else 50)


def figure_links(console: Console, quick: bool) -> None:
    """Print times on eight nodes whose rates are drawn from 1 to 10 Gbit/s; both rules are tuned while training."""
    table = Table(
        "total", "seed", *BASELINES, *RULES, "fela over fela-paper", "over the best baseline",
        title="VGG19, links of 1 to 10 Gbit/s: s of an iteration after tuning",
    )  # fmt: skip
    gains = []
    for total in SAY_TOTALS:
        for seed in range(2 if quick else 6):
            rates = np.random.default_rng(seed).uniform(RATE / 10, RATE, WORKERS)
            eight, model = Machines(Capacities.from_lists(rates, rates)), MODELS["vgg19"]
            took = [train(one, model, eight, total, STEADY).iteration_s() for one in BASELINES]
            for rules in RULES:
                tuner = tune_fela(model, eight, total, TUNING, rules, PHASES)[1]
                took.append(tuner.measured_s[tuner.best])
            gains.append(took[-1] / took[-2])
            row = [f"{one:.3f}" for one in took] + [f"{gains[-1]:.2f}", f"{min(took[:3]) / took[-2]:.2f}"]
            table.add_row(str(total), str(seed), *row)
    console.print(
        table, f"fela over fela-paper: median {statistics.median(gains):.2f}, {min(gains):.2f} to {max(gains):.2f}"
    )


def figure_scale(console: Console, quick: bool) -> None:
    """Print iteration times for growing numbers of nodes, and how long their simulation takes."""
    table = Table(
        "nodes",
        "rules",
        "total",
        "iteration s",
        "tokens of an iteration",
        "simulated in s",
        title="VGG19, weights 1,2,2",
    )
    for nodes in (8, 100) if quick else (8, 100, 1000):
        for rules in RULES:
            many, start_s = replace(Machines.equal(nodes, RATE), jitter=JITTER), time.perf_counter()
            run = train_fela(
                MODELS["vgg19"], many, 32 * nodes, Configuration((1, 2, 2), tuple(range(nodes))), 2, rules=rules
            )
            took_s = time.perf_counter() - start_s
            table.add_row(
                str(nodes), rules, str(32 * nodes), f"{run.iteration_s():.3f}", str(run.tokens // 2), f"{took_s:.1f}"
            )
    console.print(table)


def text_of(weights: Sequence[int], subset: Sequence[int] | None = None) -> str:
    """Weights, and |S| if given, as the paper writes them."""
    return "{" + ",".join(map(str, weights)) + "}" + (f", |S| = {len(subset)}" if subset is not None else "")


def saving(seconds: dict[Configuration, float]) -> str:
    """The time that the best case saves over the worst, in percent."""
    return f"{1 - min(seconds.values()) / max(seconds.values()):.1%}"


def spread(ratios: Sequence[float]) -> str:
    """The least and greatest gain, as the paper writes them: in percent, or as a factor from 1 on."""
    return " to ".join(
        f"{100 * (one - 1):.1f} %" if one < 2 else f"{one - 1:.2f}x" for one in (min(ratios), max(ratios))
    )


def main() -> int:
    """Print the tables of the chosen figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--simulated", action="store_true", help="at the paper's scale")
    parser.add_argument("--only", metavar="N[,N...]", help="these figures: 1, 6, 7, 8, 9, 10, links, scale")
    parser.add_argument("--quick", action="store_true", help="fewer iterations, seeds and nodes")
    args = parser.parse_args()
    console = Console(width=200)
    figures: dict[str, Callable[[], None]] = {
        "1": lambda: figure_1(console),
        "6": lambda: figure_6(console),
        "7": lambda: figure_7(console),
        "8": lambda: figure_8(console),
        "9": lambda: figure_9(console, args.quick),
        "10": lambda: figure_10(console, args.quick),
        "links": lambda: figure_links(console, args.quick),
        "scale": lambda: figure_scale(console, args.quick),
    }
    chosen = args.only.split(",") if args.only else list(figures)
    if not args.simulated or not set(chosen) <= set(figures):
        parser.error(f"give --simulated, and of figures {', '.join(figures)}")
    for one in chosen:
        figures[one]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
