"""Summarises a run in numbers and in plain words, for the report's table and its first paragraphs."""

import math
import shlex
import statistics
from dataclasses import dataclass

from nalb.errors import listed
from nalb.reporting.record import Record, Timeline
from nalb.reporting.run_file import WARM_UP, median_s, ratio, steady
from nalb.units import bytes_per_s_to_mbps

SAME_PART = 0.03  # a smaller relative difference of medians counts as none


@dataclass(frozen=True)
class Row:
    """One scheme's row in the table. Times are medians over the iterations after the warm-up; NaN where nothing is known."""

    scheme: str
    counted: int  # the number of iterations in the medians
    communication_s: float
    least_s: float
    greatest_s: float
    over_bound: float  # median of each iteration's time over the bound that held for it
    over_goodput_bound: float
    speed_up: float  # the first scheme's median communication time over this scheme's
    iteration_s: float
    samples_per_min: float
    plan_wait_s: float
    link_error: float
    link_error_p95: float


def summarise(record: Record) -> list[Row]:
    """The rows of all schemes, in run.json's order."""
    rows: list[Row] = []
    for name, result in record.run.schemes.items():
        values = steady(result.communication_s)
        middle_s = median_s(result.communication_s)
        pairs = zip(values, steady(record.bounds_s(name)), strict=True)
        ratios = [value / bound for value, bound in pairs if bound > 0]
        over_bound = statistics.median(ratios) if ratios else math.nan
        error = result.link_error
        rows.append(
            Row(
                scheme=name,
                counted=len(values),
                communication_s=middle_s,
                least_s=min(values, default=math.nan),
                greatest_s=max(values, default=math.nan),
                over_bound=over_bound,
                over_goodput_bound=over_bound / record.run.goodput_factor,
                speed_up=ratio(rows[0].communication_s, middle_s) if rows else 1.0,
                iteration_s=median_s(result.iteration_s),
                samples_per_min=result.samples_per_min,
                plan_wait_s=median_s(result.plan_wait_s),
                link_error=math.nan if error is None else error.median,
                link_error_p95=math.nan if error is None else error.p95,
            )
        )
    return rows


def verdicts(rows: list[Row]) -> list[str]:
    """A sentence for each scheme that compares it with the first, and one that names the scheme nearest to the bound."""
    first = rows[0]
    sentences = []
    for row in rows[1:]:
        if math.isnan(row.speed_up):
            sentences.append(f"{row.scheme}: no comparison with {first.scheme}, since times are missing.")
            continue
        if abs(row.speed_up - 1) < SAME_PART:
            what = f"takes about as long as {first.scheme}"
        elif row.speed_up > 1:
            what = f"exchanges gradients {row.speed_up:.2f} times as fast as {first.scheme}"
        else:
            what = f"is slower than {first.scheme}: it takes {1 / row.speed_up:.2f} times as long"
        apart = row.greatest_s < first.least_s or row.least_s > first.greatest_s
        spread = "no iteration of the one is within the range of the other" if apart else "their ranges overlap"
        sentences.append(f"{row.scheme} {what} (medians; {spread}).")
    bounded = [row for row in rows if not math.isnan(row.over_bound)]
    if bounded:
        best = min(bounded, key=lambda row: row.over_bound)
        nearest = f"Nearest to the lossless bound is {best.scheme}, at {best.over_bound:.2f} times the bound"
        if not math.isnan(best.over_goodput_bound):
            nearest += f" and {best.over_goodput_bound:.2f} times the goodput bound"
        sentences.append(f"{nearest}.")
    return sentences


def level_bounds(timeline: Timeline) -> list[str]:
    """A sentence that says which level binds in a job that sums by sites, at its last known bounds; none for other jobs."""
    for step in reversed(timeline.ordered()):
        wan_s, lan_s = step.event.wan_bound_s, step.event.lan_bound_s
        if wan_s is not None and lan_s is not None:
            binding = "the uplinks bind" if wan_s >= lan_s else "the LANs bind"
            return [f"Bound by sites: the uplinks need {wan_s:.3g} s, the LANs {lan_s:.3g} s; {binding}."]
    return []


def shared_uplinks(timeline: Timeline) -> list[str]:
    """A sentence for each undeclared shared uplink that was noticed, in the order of the first notices."""
    noticed = {(tuple(one.nodes), tuple(one.others)): one for one in reversed(timeline.shared_uplinks)}
    return [
        f"{listed(one.nodes)} and {listed(one.others)} seem to be sites with a shared uplink: what crosses stays at"
        f" {bytes_per_s_to_mbps(one.up_bytes_per_s):.0f} and {bytes_per_s_to_mbps(one.down_bytes_per_s):.0f} Mbit/s in all,"
        f" however many connections send (seen by iteration {one.iteration}). If so, say it: site = in the hosts or network file."
        for one in reversed(noticed.values())
    ]


def workload_meaning(workload: str) -> str:
    """A sentence that says what the kind of workload measures."""
    kind = workload.partition(" ")[0]
    if kind == "replay":
        return (
            "Replay: gradient traffic of the model's real tensor shapes over the real servers, without its"
            " computation. It measures communication, not training."
        )
    if kind == "train":
        return "Train: a real model was trained on real data, each scheme in a job of its own."
    return "Not a kind of workload that this report knows: see how the run was made."


def command_hint(record: Record) -> str:
    """The command that makes a run like this one; run.json does not keep all flags, so some may be missing."""
    kind, _, model = record.run.workload.partition(" ")
    iterations = max(len(result.communication_s) for result in record.run.schemes.values())
    words = ["nalb", "compare", "--network", record.run.network]
    if kind in ("replay", "train") and model:
        words += [f"--{kind}", model]
    words += ["--schemes", ",".join(record.run.schemes), "--iterations", str(iterations), "--out", "NEW_DIR"]
    return shlex.join(words)


def counting_rule(record: Record) -> str:
    """The sentences that say which iterations the medians count."""
    shortest = min(len(result.communication_s) for result in record.run.schemes.values())
    rule = (
        f"Medians leave out each scheme's first {WARM_UP} iterations, in which a scheme that measures has yet to learn."
    )
    if shortest <= WARM_UP:
        rule += " A scheme that has no more iterations than these counts all of them."
    return rule
