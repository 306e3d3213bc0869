"""Summarises a run in numbers and in plain words, for the report's table and its first paragraphs."""

import math
import shlex
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nalb.errors import listed
from nalb.events import IterationEvent, Rates
from nalb.reporting.about_file import About
from nalb.reporting.pace import Pace
from nalb.reporting.record import Record, Step, Timeline, answers_of, of_uplinks, rate
from nalb.reporting.run_file import WARM_UP, ratio
from nalb.schemes import AUTO, SCHEMES
from nalb.units import GOODPUT_PART, bytes_per_s_to_mbps

SAME_PART = 0.03  # a smaller relative difference of medians counts as none
LARGE_ERROR = 0.2  # a larger median error of links is commented on


@dataclass(frozen=True)
class Row:
    """One scheme's row in the table. Times are medians over the iterations after the warm-up; NaN where nothing is known."""

    scheme: str
    counted: int  # the number of iterations in the medians
    communication_s: float
    least_s: float
    greatest_s: float
    over_bound: float  # median of each iteration's time over the bound that held for it, in the precisions that it had
    over_goodput_bound: float
    speed_up: float  # the first scheme's median communication time over this scheme's
    iteration_s: float
    iteration_speed_up: float  # the first scheme's median iteration time over this scheme's
    samples_per_min: float
    plan_wait_s: float
    link_error: float
    link_error_p95: float
    answers: frozenset[str]  # the precisions of sums

    @property
    def overlaps(self) -> bool:
        """Whether an iteration takes less time than its exchange, because the next one begins before it ends everywhere."""
        return self.iteration_s < self.communication_s


def summarise(record: Record) -> list[Row]:
    """The rows of all schemes, in run.json's order."""
    rows: list[Row] = []
    for name, result in record.run.schemes.items():
        values = result.steady(result.communication_s)
        middle_s = result.median_s(result.communication_s)
        iteration_s = result.median_s(result.iteration_s)
        pairs = zip(values, result.steady(record.bounds_s(name)), strict=True)
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
                iteration_s=iteration_s,
                iteration_speed_up=ratio(rows[0].iteration_s, iteration_s) if rows else 1.0,
                samples_per_min=math.nan if result.samples_per_min is None else result.samples_per_min,
                plan_wait_s=result.median_s(result.plan_wait_s),
                link_error=math.nan if error is None else error.median,
                link_error_p95=math.nan if error is None else error.p95,
                answers=frozenset(answers_of(step.event) for step in record.steps.get(name, [])),
            )
        )
    return rows


def verdicts(rows: list[Row]) -> list[str]:
    """A sentence for each scheme that compares it with the first, and one that names the scheme nearest to the bound.

    Where precisions differ, so do bounds, and nearness to them says nothing of speed.
    """
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
    if len({row.answers for row in bounded}) == 1:
        best = min(bounded, key=lambda row: row.over_bound)
        tied = [row.scheme for row in bounded if row.over_bound <= (1 + SAME_PART) * best.over_bound]
        who = f"is {tied[0]}" if len(tied) == 1 else f"are {listed(tied)}, all about as near"
        nearest = f"Nearest to the lossless bound {who}, at {best.over_bound:.2f} times the bound"
        if not math.isnan(best.over_goodput_bound):
            nearest += f" and {best.over_goodput_bound:.2f} times the goodput bound"
        sentences.append(f"{nearest}.")
    return sentences


def notes(rows: list[Row], paces: Sequence[Pace]) -> list[str]:
    """Sentences on numbers of the table that look wrong, and are not."""
    sentences = []
    if overlapping := [row.scheme for row in rows if row.overlaps]:
        sentences.append(
            f"* {listed(overlapping)}: an iteration takes less than its exchange, since a worker that has all its sums goes on, and"
            " pushes of the next iteration while a slower worker still waits for sums of this one."
        )
    sentences += [
        f"{pace.scheme}: workers wait {pace.plan_wait_s:.3g} s of an iteration's {pace.iteration_s:.3g} s for plans, which the time"
        " of its exchange does not count."
        for pace in paces
        if pace.plan_wait_s > SAME_PART * pace.iteration_s
    ]
    sentences += [
        f"The estimates of {row.scheme} miss the rates of half the links that its plans filled by {row.link_error:.0%} or more:"
        " the network changed faster than it was measured, or another thing than these links held the messages up."
        for row in rows
        if row.link_error > LARGE_ERROR
    ]
    return sentences


def favourite(schemes: list[str]) -> str:
    """The scheme that a reader asks about first: nalb's default where it ran, else the last one."""
    return next((name for name in schemes if SCHEMES.get(name) == SCHEMES[AUTO]), schemes[-1])


def is_training(record: Record) -> bool:
    """Whether the run is a comparison of real trainings, of which whole iterations count and not the exchange alone."""
    return record.run.workload.startswith("train ")


def headline(record: Record, rows: list[Row], paces: list[Pace]) -> str:
    """The run in one sentence: how fast the favourite scheme is, how near to the bound, and what sets its pace.

    Schemes are compared by whole iterations where they train, and by the exchange in replays, which do nothing else.
    """
    name = favourite([row.scheme for row in rows])
    row = next(one for one in rows if one.scheme == name)
    first = rows[0]
    if math.isnan(row.communication_s):
        return f"{name} completed no iteration"
    parts = []
    speed_up = row.iteration_speed_up if is_training(record) else row.speed_up
    if row is first:
        parts.append(f"an iteration of {name} takes {row.iteration_s:.3g} s, its exchange {row.communication_s:.3g} s")
    elif abs(speed_up - 1) < SAME_PART:
        parts.append(f"{name} is about as fast as {first.scheme}")
    else:
        parts.append(f"{name} is {speed_up:.2f} times as fast as {first.scheme}")
    if not math.isnan(row.over_goodput_bound):
        parts.append(f"{row.over_goodput_bound:.2f} x what these links allow")
    elif not math.isnan(row.over_bound):
        parts.append(f"{row.over_bound:.2f} x what these links allow without loss and headers")
    parts += [pace.sentence for pace in paces if pace.scheme == name and pace.sentence]
    return "; ".join(parts)


@dataclass(frozen=True)
class NodeRow:
    """A row in the table of the network: a node's, or that of an uplink. Rates in Mbit/s as text: what is known of them."""

    node: str  # or the uplink, as people call it
    configured: str  # up / down, at the iteration of `measured`, else the last known
    measured: str  # up / down, for data, at the last iteration
    share: (
        str  # the part of the model that its server summed in the last iteration; of an uplink: its machines' servers
    )


def network_rows(timeline: Timeline) -> list[NodeRow]:
    """The rows of the nodes, and then of sites' uplinks. A measured rate without proof is a lower bound, and says so."""
    steps = timeline.ordered()
    measured = next((step.event for step in reversed(steps) if _is_known(step.event.estimate)), None)
    configured = _configured(measured, steps)
    planned = next((step for step in reversed(steps) if step.event.shares), None)
    estimate, least = (None, None) if measured is None else (measured.estimate, measured.least)
    of_nodes = [
        NodeRow(node, _both(configured, None, node), _both(estimate, least, node), _share(planned, [node]))
        for node in timeline.nodes
    ]
    return of_nodes + _uplink_rows(steps, planned)


def _uplink_rows(steps: Sequence[Step], planned: Step | None) -> list[NodeRow]:
    """The rows of uplinks that several machines share, or that the network file declares."""
    measured = next(
        (step.event for step in reversed(steps) if step.event.estimate and step.event.estimate.uplinks), None
    )
    declared = _configured(
        measured, [step for step in steps if step.event.configured and step.event.configured.uplinks]
    )
    site_of = next((step.ready.sites for step in steps if step.ready and step.ready.sites), None)
    site_of = site_of or ({} if declared is None else declared.site_of)
    told = (declared, None, None) if measured is None else (declared, measured.estimate, measured.least)
    configured, estimate, least = map(of_uplinks, told)
    rows = []
    for site in dict.fromkeys(site_of.values()):
        members = [node for node, of in site_of.items() if of == site]
        if len(members) > 1 or rate(configured, "up", site) is not None:
            rates = _both(configured, None, site), _both(estimate, least, site)
            rows.append(NodeRow(f"uplink of {site}", *rates, _share(planned, members)))
    return rows


def _configured(measured: IterationEvent | None, steps: Sequence[Step]) -> Rates | None:
    """The configured rates that held when the measured ones were known; else the last known of the steps."""
    if measured is not None and measured.configured is not None:
        return measured.configured
    return next((step.event.configured for step in reversed(steps) if step.event.configured is not None), None)


def _is_known(rates: Rates | None) -> bool:
    return rates is not None and any(rates.up.values())


def _both(rates: Rates | None, least: Rates | None, node: str) -> str:
    """Up / down. A rate above its lower bound is shown as that bound."""
    shown = []
    for direction in ("up", "down"):
        value, bound = rate(rates, direction, node), rate(least, direction, node)
        is_hoped = value is not None and bound is not None and bound < 0.999 * value
        known = bound if is_hoped else value
        shown.append("-" if known is None else f"{'≥ ' if is_hoped else ''}{bytes_per_s_to_mbps(known):.4g}")
    return " / ".join(shown)


def _share(step: Step | None, nodes: Iterable[str]) -> str:
    if step is None:
        return "-"
    whole = sum(value or 0.0 for value in step.event.shares.values())
    return f"{sum(step.event.shares.get(node) or 0.0 for node in nodes) / whole:.1%}" if whole else "-"


def data_rates_note() -> str:
    """The sentence below the table of the network."""
    return (
        f"Mbit/s, up / down. Measured rates are of data, so at most {GOODPUT_PART:.1%} of a configured one. ≥ is a lower bound: the"
        " link was never full, so it may be faster. The share is what the node's server summed in the last planned iteration; of an"
        " uplink, what the servers of its site's machines summed."
    )


def origin(about: About | None, left_out: int = 0) -> str:
    """When, where and by which version the run was made; and how many jobs before the last one are left out."""
    if about is None:
        others = f" Of {1 + left_out} jobs in it this report tells of the last one alone." if left_out else ""
        return f"The run directory does not say when and where the run was made: it has no about.json.{others}"
    return f"Begun {about.begun} by nalb {about.version} on {about.machine}."


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
        return "Train: a script trained, once or several times under each scheme, each time in a job of its own."
    if kind == "launch":
        return "Launch: a job with a script of its own, whose computing and exchange both count."
    return "Not a kind of workload that this report knows: see how the run was made."


def command_hint(record: Record, about: About | None = None) -> str:
    """The command that makes a run like this one; empty where nothing tells.

    Without about.json it is made from run.json, which does not keep all flags, so some may be missing.
    """
    if about is not None:
        return shlex.join(["nalb", *about.command])
    if record.is_launch:
        return ""
    kind, _, model = record.run.workload.partition(" ")
    iterations = max(len(result.communication_s) for result in record.run.schemes.values())
    words = ["nalb", "compare", "--network", record.run.network]
    if kind in ("replay", "train") and model:
        words += [f"--{kind}", model]
    words += ["--schemes", ",".join(record.run.schemes), "--iterations", str(iterations), "--out", "NEW_DIR"]
    return shlex.join(words)


def counting_rule(record: Record) -> str:
    """The sentences that say which iterations the medians count."""
    results = record.run.schemes.values()
    shortest = min(min(result.rounds or [len(result.communication_s)]) for result in results)
    of = "round's" if any(result.rounds for result in results) else "scheme's"
    rule = f"Medians leave out each {of} first {WARM_UP} iterations, in which a scheme that measures has yet to learn."
    if shortest <= WARM_UP:
        rule += " A scheme that has no other iterations than these counts all of them."
    return rule
