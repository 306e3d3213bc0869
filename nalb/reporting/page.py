"""Writes the report of a run directory: report.html for a comparison or a job, tokens.html where workers computed tokens, and
batching.html where batches have sizes of their own.

Each page contains its figures and needs no other file; the same figures are also in figures/.
Names come from files and may contain anything: the templates escape all names, and figures draw them as plain text.
"""

import base64
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from nalb.errors import InputError, MachineError, is_full
from nalb.reporting.about_file import About, read_about
from nalb.reporting.attempts import attempts_line
from nalb.reporting.batch_figures import batch_rows, batches_over_run
from nalb.reporting.batching_file import read_batchings
from nalb.reporting.drawing import png
from nalb.reporting.link_figures import rates_over_run, throughput_inside
from nalb.reporting.pace import paces
from nalb.reporting.parallel_file import read_parallels
from nalb.reporting.precisions import precision_lines
from nalb.reporting.record import Record, Timeline, of_last_job, read_timeline, record_of
from nalb.reporting.share_figures import bytes_by_scheme, shares_over_iterations
from nalb.reporting.summary import (
    command_hint,
    counting_rule,
    data_rates_note,
    favourite,
    headline,
    is_training,
    level_bounds,
    network_rows,
    notes,
    origin,
    shared_uplinks,
    summarise,
    verdicts,
    workload_meaning,
)
from nalb.reporting.table import UNEXPLAINED_PART, printed_lines, seconds
from nalb.reporting.time_figures import times_by_scheme, times_over_iterations
from nalb.reporting.token_figures import shape_rows, tokens_over_run, tokens_over_time, worker_rows

PAGE = "report.html"
TOKENS_PAGE = "tokens.html"
BATCHING_PAGE = "batching.html"
FOLDER = "figures"


@dataclass(frozen=True)
class FigureOf:
    """One figure of a page."""

    file: str  # the file's name in FOLDER
    title: str
    words: str  # an explanation for readers who do not know the design
    draw: Callable[[Any], Figure]  # makes the figure from the page's record


TOKEN_FIGURES = (
    FigureOf(
        "tokens.png",
        "Who computed what, and who helped whom?",
        "One iteration of median length, with the last shape. Each bar is a token: darker for later sub-models,"
        " hatched where it goes backward, with a red edge where it was another worker's. Before it, a blue bar is"
        " the wait for its inputs from other workers, and a thin line that for the optimizer's step of its sub-model in the"
        " iteration before. White is idle time: no token was there for the worker.",
        tokens_over_time,
    ),
    FigureOf(
        "tokens_run.png",
        "How did it go over the whole training?",
        "Above, the time of each iteration; dotted lines are where the shape changed, as the table says. Below,"
        " which part of each iteration's tokens every worker computed, and which part it took from others' buckets;"
        " darker is more.",
        tokens_over_run,
    ),
)
BATCH_FIGURES = (
    FigureOf(
        "batches.png",
        "Do all workers end together?",
        "Above, the samples of each worker's batch; below, how long it computed them. Workers that wait for each other lose what"
        " lies between the slowest line and the others.",
        batches_over_run,
    ),
)
FIGURES = (
    FigureOf(
        "times.png",
        "Is it faster?",
        "Each box is one scheme: the thick line is the median, the box holds the middle half of the iterations,"
        " the whiskers reach to the fastest and slowest, and each dot is one iteration. The dashed line at a"
        " scheme is its bound: no way of sharing the work among these nodes can exchange the bytes that it sends in less"
        " time (a grey band: it varied during the run). A scheme is faster where its box lies lower and the boxes do"
        " not overlap.",
        times_by_scheme,
    ),
    FigureOf(
        "iterations.png",
        "Does it stay fast, and how soon does it learn?",
        "The time of every exchange, one after another. The first scheme that measures starts where equal shares"
        " start and comes down as it learns the links; on a static network those after it know them already."
        " After a change of the network, watch how many iterations each needs to return to the bound. The full"
        " grey line is the first scheme's median.",
        times_over_iterations,
    ),
    FigureOf(
        "shares.png",
        "What did it decide?",
        "Each map shows which part of the model every node summed as a server, iteration by iteration; darker"
        " is more. Equal rows are equal shares. A node behind a slow link should turn light: its own gradients"
        " must cross its link anyway, so it should carry little for the others.",
        shares_over_iterations,
    ),
    FigureOf(
        "bytes.png",
        "Who carries how much, by scheme?",
        "The same shares as bytes: bars are medians, whiskers the least and greatest. Compare a scheme with the"
        " oracle where that was run: the oracle plans with the configured rates, so a difference from it is an"
        " error of measurement.",
        bytes_by_scheme,
    ),
    FigureOf(
        "rates_up.png",
        "Did it see the uplinks rightly?",
        "The rate that the measurement gave for each node's uplink, against the configured one. The dashed line"
        " is what is left for data after packet headers, so a right measurement lies on it. Filled marks: the"
        " link was the node's limit, so its rate could be seen. Hollow marks: other nodes were the limit, so"
        " reading low is no mistake. A grey dash above a mark is what plans hope for where nothing is proven: 1.1 times the mark"
        " or more, which may be above the link. The table's link error counts the links that the plan filled.",
        lambda record: rates_over_run(record, "up"),
    ),
    FigureOf(
        "rates_down.png",
        "Did it see the downlinks rightly?",
        "The same for what each node receives.",
        lambda record: rates_over_run(record, "down"),
    ),
    FigureOf(
        "throughput.png",
        "Why is it not at the bound?",
        "Inside one iteration of median length: what each node sent and received. The bound is reached when the"
        " limiting nodes keep their links full from the first message to the last; gaps are lost time. Each"
        " message is spread evenly over its transfer; peaks above the link are messages that had arrived earlier"
        " and were taken up together.",
        throughput_inside,
    ),
)


@dataclass(frozen=True)
class Page:
    """One page of a run's report."""

    file: str
    figures: Sequence[FigureOf]
    record: Timeline
    render: Callable[[Any, Mapping[str, bytes]], str]  # makes the HTML from the page's record and its pictures by file


def run_dirs(directory: Path) -> list[Path]:
    """The run directories with reports of their own: `directory`, or its trainings where it compares batchings or ways.

    Raises InputError where there is none.
    """
    if (directory / "run.json").exists():
        return [directory]
    for name in ("batching.json", "parallel.json"):
        if (directory / name).exists():
            found = read_batchings(directory).batchings if name == "batching.json" else read_parallels(directory).ways
            if wrong := [one for one in found if Path(one).name != one]:
                raise InputError(f"{directory / name}: {wrong[0]!r} is no name of a training: restore the file")
            return [directory / one for one in found]
    return [directory]


def pages_of(run_dir: Path) -> list[Page]:
    """The pages of a run directory's report. Raises InputError where the run cannot be read."""
    timeline, attempts = of_last_job(run_dir, read_timeline(run_dir)), attempts_line(run_dir)
    pages = []
    if timeline.tokens:
        pages.append(Page(TOKENS_PAGE, TOKEN_FIGURES, timeline, partial(render_tokens, attempts=attempts)))
    if timeline.batches:
        pages.append(Page(BATCHING_PAGE, BATCH_FIGURES, timeline, partial(render_batches, attempts=attempts)))
    if (run_dir / "run.json").exists() or timeline.has_events or not pages:
        how = partial(render, about=read_about(run_dir), attempts=attempts)
        pages.insert(0, Page(PAGE, FIGURES, record_of(run_dir, timeline), how))
    return pages


def existing_report(run_dir: Path, pages: Sequence[Page]) -> list[Path]:
    """The files of the pages that exist already."""
    names = [name for page in pages for name in (page.file, *(f"{FOLDER}/{figure.file}" for figure in page.figures))]
    return [path for path in (run_dir / name for name in names) if path.exists() or path.is_symlink()]


def write_report(run_dir: Path, force: bool, on_figure: Callable[[str], None]) -> list[Page]:
    """Draw all figures, then write all files; return the pages. `on_figure` is called with a figure's file name before it is drawn.

    Raises InputError where the run cannot be read, where a report exists and `force` is false, or where a file cannot be written;
    MachineError where the disk is full.
    """
    pages = pages_of(run_dir)
    if not force and (old := existing_report(run_dir, pages)):
        raise InputError(f"{old[0]} is there already: give --force to write the report again")
    pictures: dict[str, bytes] = {}
    try:
        (run_dir / FOLDER).mkdir(exist_ok=True)
        for page in pages:
            for figure in page.figures:
                on_figure(figure.file)
                pictures[figure.file] = png(lambda draw=figure.draw, record=page.record: draw(record))  # type: ignore[misc]
        texts = {page.file: page.render(page.record, pictures) for page in pages}
        for name, picture in pictures.items():
            replace_file(run_dir / FOLDER / name, picture)
        for name, text in texts.items():
            replace_file(run_dir / name, text.encode("utf-8", errors="replace"))
    except OSError as error:
        if is_full(error):
            raise MachineError(f"{error.filename or run_dir}: {error.strerror}: make room there") from None
        raise InputError(f"{error.filename or run_dir}: {error.strerror}; make {run_dir} writable") from None
    return pages


def render(record: Record, pictures: Mapping[str, bytes], about: About | None = None, attempts: str = "") -> str:
    """Render a comparison or a job as HTML. `pictures`: PNG bytes by file name. about: None: not known.

    attempts: the line on the attempts of a job that was started again; of the other pages, too.
    """
    rows, found = summarise(record), paces(record)
    ours = favourite([row.scheme for row in rows])
    found.sort(key=lambda pace: pace.scheme != ours)
    return _filled(
        "report.html",
        FIGURES,
        pictures,
        run=record.run,
        title=f"a job on {record.run.nodes} nodes"
        if record.is_launch
        else f"{record.run.workload} on {record.run.network}",
        headline=headline(record, rows, found),
        origin=origin(about, record.left_out),
        attempts=attempts,
        rows=rows,
        is_training=is_training(record),
        verdicts=[*verdicts(rows), *level_bounds(record), *precision_lines(record.steps), *shared_uplinks(record)],
        paces=found,
        unexplained_part=UNEXPLAINED_PART,
        network=network_rows(record),
        network_note=data_rates_note(),
        meaning=workload_meaning(record.run.workload),
        counting_rule=counting_rule(record),
        notes=notes(rows, found),
        printed=printed_lines(record.run),
        command=command_hint(record, about),
        is_whole_command=about is not None,
        has_events=record.has_events,
        changes=len(record.changes),
    )


def render_batches(timeline: Timeline, pictures: Mapping[str, bytes], attempts: str = "") -> str:
    """Render the run's batches as HTML. `pictures`: PNG bytes by file name."""
    told = {"title": "Batch sizes", "attempts": attempts, "batches": timeline.batches, "rows": batch_rows(timeline)}
    return _filled("batching.html", BATCH_FIGURES, pictures, **told)


def render_tokens(timeline: Timeline, pictures: Mapping[str, bytes], attempts: str = "") -> str:
    """Render the run's tokens as HTML. `pictures`: PNG bytes by file name."""
    return _filled(
        "tokens.html",
        TOKEN_FIGURES,
        pictures,
        title="Tokens",
        attempts=attempts,
        iterations=len(timeline.tokens),
        workers=worker_rows(timeline),
        shapes=shape_rows(timeline),
    )


def _filled(template: str, figures: Sequence[FigureOf], pictures: Mapping[str, bytes], **values: object) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nalb", "reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["seconds"] = seconds
    drawn = [(figure, base64.b64encode(pictures[figure.file]).decode("ascii")) for figure in figures]
    return environment.get_template(template).render(figures=drawn, **values)


def number(value: float, format_text: str) -> str:
    """A value as the page shows it; a dash where it is not known."""
    return "-" if math.isnan(value) else format(value, format_text)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by writing beside it and renaming: no reader sees half a file, and a link is replaced, not followed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
