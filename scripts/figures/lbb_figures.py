"""Repeats LBB's figures 3 to 7 and Tables 2 and 3 on this machine (Yao et al., 2023).

    python scripts/figures/lbb_figures.py [--out DIR] [--quick]

2, 3  a real job of four unequal machines (CNN): profiles and their cubic fits, the batch sizes that the fits give, and how
      well they foretell the times; and a new plan for the paper's own Table 2
4-6   the same machines: an epoch's time, and accuracy by updates and by time, under SSGD (`off`) and LBB
7     one of four workers takes 50 ms more from one iteration on; the workers sleep in place of computing, so that their times are
      exact to a millisecond
"""

import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import UnsetType
from rich.console import Console
from rich.table import Table
from scipy.stats import pearsonr, spearmanr

from experiments.networks import uneven_network, write_network
from experiments.runs import another_run, clear, run_script
from experiments.trainings import batch_events, compare_batchings, nalb
from nalb.batching.lbb import FINE_THRESHOLD, RAPID_THRESHOLD, STEP, straggler_effect
from nalb.batching.sizes import Bounds, fastest
from nalb.batching.time_models import Polynomial, fit
from nalb.errors import InputError
from nalb.events import BatchEvent
from nalb.reporting.run_file import write_whole

SLEEPERS = Path(__file__).resolve().parents[2] / "tests/kvstore/lbb_workers.py"
CORES = (0.45, 0.36, 0.24, 0.15)
PAPER_MS = {"even": (81.81, 81.49, 85.39, 392.92), "balanced": (104.94, 104.14, 103.46, 104.41)}  # Table 2
PAPER_SIZES = {"even": (128,) * 4, "balanced": (167, 167, 158, 20)}
TEST_EVERY = 15  # updates between tests of accuracy: an epoch
TARGET = 0.70  # the accuracy up to which figure 6 counts time
Points = list[tuple[int, float]]  # a profile's points: samples and seconds
NEAR = 0.02  # sizes count as the first ones while they differ by less than this part
DISTURBED_FROM = 50  # the first disturbed iteration; LBB has settled before
SLEEPING = f"130 {DISTURBED_FROM} 50"  # SLEEPERS' arguments: iterations, the first disturbed one, and the added ms


def plan_their_table(console: Console) -> None:
    """Print the best sizes in whole samples for a total of 512, with lines through the two points of each worker in Table 2."""
    curves = []
    for b0, t0, b1, t1 in zip(
        *itertools.chain(*zip(PAPER_SIZES.values(), PAPER_MS.values(), strict=True)), strict=True
    ):
        slope = (t1 - t0) / (b1 - b0)
        curves.append(Polynomial((t0 - slope * b0, slope)))
    sizes, longest = fastest(curves, Bounds.of(512, 4))
    shown = " ".join(map(str, sizes))
    console.print(f"Table 2, the paper's times: {shown}, {longest:.2f} ms; equal 392.92, the paper's sizes 104.94")


def profiles_of(events: Sequence[BatchEvent]) -> list[Points]:
    """The workers' profiles by rank, from the first iteration's event. Raises InputError where a worker has none."""
    noted = events[0].profiles
    profiles = [] if isinstance(noted, UnsetType) else [points for points in noted if points is not None]
    if len(profiles) != len(events[0].workers):
        raise InputError(
            f"samples.jsonl has profiles of {len(profiles)} of {len(events[0].workers)} workers: choose another --out"
        )
    return profiles


def show_profiles(console: Console, events: list[BatchEvent]) -> None:
    """Print Fig. 3 and Table 3: the fits, and the times that they foretell against those measured.

    Iterations count while the sizes differ from the first ones only by the samples of fine tuning.
    """
    first = np.array(next(event for event in events if event.iteration == 5).sizes)  # the first five do not count
    near = [np.abs(np.array(event.sizes) / first - 1).max() < NEAR for event in events[5:]]
    steady = list(itertools.compress(events[5:], near))
    actual_s = np.median([event.compute_s for event in steady], axis=0)
    table = Table(title=f"Fig. 3 and Table 3: profiles, fits, and the first sizes over {len(steady)} iterations")
    headings = ("worker", "points", "Pearson", "Spearman", "batch", "foretold ms", "measured ms", "error")
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, points, size, t in zip(events[0].workers, profiles_of(events), first, actual_s, strict=True):
        sizes, seconds = np.array(points, dtype=float).T
        curve = fit([int(b) for b in sizes], list(seconds))
        fitted, foretold = curve(sizes), float(curve(np.array(float(size))))
        quality = f"{pearsonr(fitted, seconds)[0]:.4f}", f"{spearmanr(fitted, seconds)[0]:.3f}"
        times = f"{foretold * 1e3:.0f}", f"{t * 1e3:.0f}", f"{foretold / t - 1:+.1%}"
        table.add_row(name, str(len(points)), *quality, str(size), *times)
    console.print(table, "paper: both above 0.99; errors -6.5 to 1.2 %, by rapid tuning -11.8 to 5.3 %")


def show_disturbance(console: Console, title: str, events: list[BatchEvent], begins: int) -> None:
    """Print Fig. 7: the straggler effect around the disturbance, and the updates of the sizes since then."""
    effect = np.array([straggler_effect(np.array(event.compute_s)) for event in events])
    sizes = [event.sizes for event in events]
    updates = np.cumsum([False] + [a != b for a, b in itertools.pairwise(sizes)])
    since = updates - updates[begins]
    one = int(np.argmax(since >= 1)) if (since >= 1).any() else None
    below = np.flatnonzero((effect < FINE_THRESHOLD) & (np.arange(len(effect)) > begins) & (since >= 1))
    table = Table(title=title)
    for heading in ("", "straggler effect", "paper"):
        table.add_column(heading, justify="right")
    table.add_row("before, median of 10", f"{np.median(effect[begins - 10 : begins]):.3f}", f"below {FINE_THRESHOLD}")
    table.add_row("first disturbed iteration", f"{effect[begins]:.3f}", f"above {RAPID_THRESHOLD}")
    after = math.nan if one is None else effect[one]
    table.add_row(f"first with new sizes (+{(one or 0) - begins})", f"{after:.3f}", "below 0.1 after one rapid tuning")
    reached = f"iteration +{below[0] - begins}, update {since[below[0]]}" if len(below) else "never"
    table.add_row(f"first below {FINE_THRESHOLD}", reached, "after a few fine tunings")
    table.add_row("last 20, median", f"{np.median(effect[-20:]):.3f}", f"below {FINE_THRESHOLD}")
    console.print(table)
    foretell_rapid(console, events, begins)


def rapid_tunings(events: Sequence[BatchEvent]) -> list[bool]:
    """For each event, whether it orders a rapid tuning: next sizes that move a worker by more than a fine tuning does."""
    asked = [events[0].sizes, *(event.next_sizes for event in events)]
    moved = [int(np.abs(np.array(new) - np.array(old)).max()) for old, new in itertools.pairwise(asked)]
    return [samples > STEP for samples in moved]


def foretell_rapid(console: Console, events: Sequence[BatchEvent], begins: int) -> None:
    """Print the right half of Table 3: errors of the line that foretells a rapid tuning's times.

    The line goes through the last time, and its fixed part a0 comes from the profile.
    """
    for k in itertools.compress(range(len(events)), rapid_tunings(events)):
        event = events[k]
        if k < begins:
            continue
        after = next((later for later in events[k:] if later.sizes == event.next_sizes), None)
        if after is None:
            continue
        fits = [fit([b for b, _ in points], [s for _, s in points]) for points in profiles_of(events)]
        now, times = np.array(event.sizes), np.array(event.compute_s)
        fixed = np.array([curve.overhead_s for curve in fits])
        fixed = np.where((fixed > 0) & (fixed < times), fixed, 0.0)
        foretold = fixed + (times - fixed) / now * np.array(event.next_sizes)
        errors = foretold / np.array(after.compute_s) - 1
        console.print("rapid tuning's forecast, error by worker:", " ".join(f"{error:+.1%}" for error in errors))


def sleepers(out: Path) -> list[BatchEvent]:
    """Run Fig. 7's training unless OUT is finished; return its batch events. Raises InputError where OUT holds another run."""
    done = out / "done"
    if not done.exists():
        clear(out)
        script = [sys.executable, str(SLEEPERS), *SLEEPING.split()]
        nalb(["launch", "--local", "4", "--batching", "lbb", "--out", str(out), "--", *script])
        write_whole(done, SLEEPING.encode())
    if (has := done.read_text(encoding="utf-8")) != SLEEPING:
        raise another_run(out, f"{SLEEPERS.name} {has}")
    return batch_events(out)


def main(out: Path, quick: bool) -> None:
    """Run the trainings that are missing and print the tables."""
    console, networks = Console(width=max(110, Console().width)), out / "networks"
    plan_their_table(console)
    network = write_network(networks, "lbb2", uneven_network("lbb2", CORES))
    run = compare_batchings(out / "table-2", network, "off,lbb", 20 if quick else 40, "cnn", 4096)
    table = Table(title=f"Table 2: cores {' '.join(map(str, CORES))}, 4096 samples; median ms of the later half")
    for heading in ("", "sizes", "computing", "slowest", "paper"):
        table.add_column(heading, justify="right")
    for (name, one), paper in zip(run.batchings.items(), ("392.92", "104.94 = 0.27 x"), strict=True):
        times = np.median(one.compute_s[len(one.compute_s) // 2 :], axis=0) * 1e3
        shown = " ".join(f"{t:.0f}" for t in times), f"{one.slowest_s * 1e3:.0f}"
        table.add_row(name, " ".join(map(str, one.sizes[-1])), *shown, paper)
    console.print(table)
    show_profiles(console, batch_events(out / "table-2" / "lbb"))
    run = compare_batchings(
        out / "figure-5", network, "off,lbb", 30 if quick else 60, "cnn", 4096, "--test-every", str(TEST_EVERY)
    )
    table = Table(title="Figs. 4 to 6: the same machines; the paper's epochs take 62.44 and 22.12 s")
    for heading in ("", "iteration s", "accuracy by updates", f"seconds to {TARGET}"):
        table.add_column(heading, justify="right")
    for name, one in run.batchings.items():
        curve = " ".join(f"{updates}: {accuracy:.3f}" for updates, accuracy in one.curve)
        needed_s = one.seconds_to(TARGET)
        table.add_row(name, f"{one.iteration_s:.3f}", curve, "never" if needed_s is None else f"{needed_s:.1f}")
    console.print(table)
    title = f"Fig. 7, four workers that sleep, 50 ms more on one from iteration {DISTURBED_FROM} on"
    show_disturbance(console, title, sleepers(out / "figure-7"), DISTURBED_FROM)


if __name__ == "__main__":
    sys.exit(run_script("lbb", __doc__, main))
