"""Reads a run for its report: run.json joined with the events of samples.jsonl, or the events alone.

The k-th iteration event of a scheme belongs to the scheme's k-th iteration in run.json. A 'samples' event comes just before the
iteration event with the same number. Numbers start again with every job ('ready'); a training has one job per scheme.
A value that no file states stays None or empty here, and no figure may fill it in.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from nalb.errors import InputError, listed, printable
from nalb.events import (
    AbortEvent,
    BatchEvent,
    ChangeEvent,
    FailureEvent,
    IterationEvent,
    LayoutEvent,
    Rates,
    ReadyEvent,
    Row,
    SamplesEvent,
    SharedUplinkEvent,
    Times,
    TokenRow,
    TokensEvent,
    TokenShapeEvent,
)
from nalb.planning.precisions import STEPS
from nalb.planning.slices import size_bytes, value_dtype
from nalb.reporting.about_file import is_of_command
from nalb.reporting.run_file import (
    LARGEST_BYTES,
    LONGEST_US,
    WARM_UP,
    RunFile,
    SchemeResult,
    event_of,
    placed_events,
    read_run,
    require_possible,
)
from nalb.units import GOODPUT_PART

SATURATED_PART = 0.85  # a node that moved at least this part of its link's capacity was limited by that link


@dataclass(frozen=True)
class StoredRows(Collection[Row]):
    """The messages of an iteration, read anew by each loop over them. They are not kept, since a long job has millions."""

    path: Path
    at_byte: int  # where the line of their event begins
    count: int

    def __len__(self) -> int:
        return self.count

    def __contains__(self, row: object) -> bool:
        return row in self._read()

    def __iter__(self) -> Iterator[Row]:
        return iter(self._read())

    def _read(self) -> list[Row]:
        where = f"{self.path}, byte {self.at_byte}"
        try:
            with self.path.open("rb") as file:
                file.seek(self.at_byte)
                event = event_of(file.readline(), where)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}; make it a readable file") from None
        if not isinstance(event, SamplesEvent) or len(event.rows) != self.count:
            raise InputError(f"{where}: another program has changed the file; give the command again")
        return event.rows


@dataclass(frozen=True)
class Step:
    """One iteration of one scheme."""

    place: int  # its number among all iterations of the run
    begin_s: float  # the end of the iteration before it; its own end if there is none
    event: IterationEvent
    rows: Collection[Row]  # its messages; empty where it was not measured
    rows_at_s: float = 0.0  # the time from which the rows' times count
    ready: ReadyEvent | None = None  # of its job; None: not known
    layout: LayoutEvent | None = None  # how its tensors were cut; None: not known
    # of its job, of its scheme's turn, or after a number without an event: what came before it was not computing alone
    is_first: bool = False
    nodes: list[str] = field(default_factory=list)  # of its job, as `rows` number them

    @property
    def communication_s(self) -> float:
        """The slowest worker's communication time, as in run.json; 0 where no worker reported."""
        return max(self.event.communication_s.values(), default=0.0)

    @property
    def iteration_s(self) -> float:
        """From the slowest worker's end of the iteration before to its end of this one, which no exchange exceeds.

        Of one that `is_first` only the exchange is known.
        """
        return self.communication_s if self.is_first else max(self.event.at_s - self.begin_s, self.communication_s)

    @property
    def worker_iteration_s(self) -> Times:
        """The same of each worker, by itself."""
        return self.event.communication_s if self.is_first else self.event.iteration_s

    def saturated(self, direction: str, node: str) -> bool:
        """Whether the node's own link limited its transfer, so that the measured rate is the link's. direction: "up" or "down"."""
        load, configured = self.event.load_bytes.get(node), rate(self.event.configured, direction, node)
        if load is None or configured is None:
            return False
        return load >= SATURATED_PART * GOODPUT_PART * configured * self.communication_s


@dataclass
class Timeline:
    """The content of a run's samples.jsonl."""

    nodes: list[str] = field(default_factory=list)  # of all jobs, in the order in which they were first named
    servers: list[str] = field(default_factory=list)  # nodes by server rank, of the last job
    steps: dict[str, list[Step]] = field(default_factory=dict)
    changes: list[ChangeEvent] = field(default_factory=list)
    has_events: bool = False
    shared_uplinks: list[SharedUplinkEvent] = field(default_factory=list)
    shapes: list[TokenShapeEvent] = field(default_factory=list)  # the shapes of the last job that computed tokens
    tokens: list[TokensEvent] = field(default_factory=list)  # the same job's token events, by iteration
    batches: list[BatchEvent] = field(default_factory=list)  # where workers' batches have sizes of their own
    failure: str = ""  # why the last job failed, in words; empty where it did not
    # of each job with iterations: the place of its first one, and how many shared uplinks were noticed before the job
    begins: list[tuple[int, int]] = field(default_factory=list)
    batches_before: int = 0  # how many of `batches` are of jobs before the last one that has any, or an iteration
    left_out: int = 0  # jobs before the last one, whose iterations `steps` lacks

    def name_nodes(self, nodes: Sequence[str]) -> None:
        """Add the nodes of a job that no job before it had."""
        self.nodes = list(dict.fromkeys([*self.nodes, *nodes]))

    def ordered(self) -> list[Step]:
        """All iterations in the order in which they ran."""
        return sorted((step for steps in self.steps.values() for step in steps), key=lambda step: step.place)


@dataclass
class Record(Timeline):
    """A whole run: run.json and samples.jsonl."""

    run: RunFile = field(kw_only=True)
    is_launch: bool = (
        False  # `run` is made from the events of one job, whose network, workload and bound may be unknown
    )

    def bounds_s(self, scheme: str) -> list[float]:
        """The lossless bounds of the scheme's iterations, in seconds: the event's bound where it has one, else the run's."""
        steps = self.steps.get(scheme, [])
        told = [self.run.known_bound_s if step.event.bound_s is None else step.event.bound_s for step in steps]
        count = len(self.run.schemes[scheme].communication_s)
        return (told + [self.run.known_bound_s] * (count - len(told)))[:count]

    def change_places(self, scheme: str) -> list[float]:
        """The network's changes as places on the axis of the scheme's iterations: 2.5 is half-way through iteration number 2."""
        places = []
        for number, step in enumerate(self.steps.get(scheme, [])):
            length_s = step.event.at_s - step.begin_s
            for change in self.changes:
                if step.begin_s < change.at_s <= step.event.at_s:
                    places.append(number + (change.at_s - step.begin_s) / length_s)
        return places


def rate(rates: Rates | None, direction: str, node: str) -> float | None:
    """One node's rate in bytes per second, or None where it is unknown. direction: "up" or "down"."""
    if rates is None:
        return None
    return (rates.up if direction == "up" else rates.down).get(node)


def of_uplinks(rates: Rates | None) -> Rates | None:
    """The uplinks' rates, by site in place of node."""
    if rates is None:
        return None
    up, down = ({site: pair[column] for site, pair in rates.uplinks.items()} for column in (0, 1))
    return Rates(up=up, down=down)


def answers_of(event: IterationEvent) -> str:
    """The precision of all sums of an iteration."""
    return STEPS[0] if event.rounded is None else event.rounded.answers


def follows(event: IterationEvent, before: IterationEvent) -> bool:
    """Whether an iteration came right after the other in one scheme's turn.

    Numbers without an event are of iterations that were broken off, or that were planned ahead and then had other tensors.
    """
    return event.scheme == before.scheme and event.iteration <= before.iteration + 1


class Readies:
    """Which `ready` an iteration belongs to: jobs of a comparison that take turns, by sites and not, write into one file."""

    def __init__(self) -> None:
        self._newest: dict[bool, ReadyEvent] = {}  # by whether its job sums by sites

    def take(self, event: ReadyEvent) -> None:
        """All processes of a job have joined."""
        self._newest[bool(event.sites)] = event

    def of(self, event: IterationEvent) -> ReadyEvent | None:
        """The newest job of the iteration's kind; None where none has said that it is ready."""
        return self._newest.get(bool(event.estimate is not None and event.estimate.uplinks))


class Layouts:
    """Which layout an iteration has: jobs of a comparison that take turns may send values in different precisions."""

    def __init__(self) -> None:
        self._newest: dict[str, LayoutEvent] = {}  # by the precision of answers
        self._last: LayoutEvent | None = None

    def take(self, event: LayoutEvent) -> None:
        """The tensors of a job were cut."""
        if self._last is not None and _values(event) != _values(self._last):
            self._newest.clear()
        self._newest[event.precision or STEPS[0]] = self._last = event

    def of(self, event: IterationEvent) -> LayoutEvent | None:
        """The newest layout of the iteration's precision, else of any; None where no tensors were cut before it."""
        return self._newest.get(answers_of(event), self._last)


def _values(event: LayoutEvent) -> list[tuple[str, int]]:
    """The names and elements of a layout's tensors."""
    return [(name, elements) for name, elements, *_ in event.tensors or ()]


def after_warm_up(steps: Sequence[Step]) -> list[Step]:
    """The steps of a scheme that are not among the first WARM_UP of their job: a script's rounds are jobs of their own."""
    jobs = groupby(steps, key=lambda step: id(step.ready))
    return [step for _, one_job in jobs for step in islice(one_job, WARM_UP, None)]


class TokenTimes(NamedTuple):
    """A token's times in seconds since its event's `at_s`. From inputs_s to start_s the worker waits for the model's last step."""

    given_s: float  # a worker was given the token
    inputs_s: float  # the worker had all inputs
    start_s: float  # computing began
    done_s: float  # computing ended

    @staticmethod
    def of(row: TokenRow) -> "TokenTimes":
        """The times of a row. The report of a token is taken to arrive at once, so its computing ends when the report arrives."""
        given_s, done_s = 1e-6 * row.given_us, 1e-6 * row.done_us
        inputs_s = min(given_s + 1e-6 * row.fetch_us, done_s)
        return TokenTimes(given_s, inputs_s, max(inputs_s, done_s - 1e-6 * row.compute_us), done_s)


def read_record(run_dir: Path, timeline: Timeline | None = None) -> Record:
    """Read both files of a run directory. timeline: of samples.jsonl, if that is read already; None: it is not.

    Raises InputError, which names the file and its fault.
    """
    timeline = read_timeline(run_dir) if timeline is None else timeline
    record = Record(**vars(timeline), run=read_run(run_dir))
    _check_agreement(record, run_dir / "samples.jsonl")
    return record


def record_of(run_dir: Path, timeline: Timeline | None = None) -> Record:
    """Read a run directory with or without run.json, as that of a launch. timeline: as `of_last_job` gives it; None: not read yet.

    Raises InputError, which names the fault.
    """
    timeline = of_last_job(run_dir, read_timeline(run_dir)) if timeline is None else timeline
    if (run_dir / "run.json").exists():
        return read_record(run_dir, timeline)
    if not timeline.has_events:
        raise without_iterations(run_dir, timeline)
    return Record(**vars(timeline), run=_run_of(timeline), is_launch=True)


def of_last_job(run_dir: Path, timeline: Timeline) -> Timeline:
    """The timeline, which is of run_dir, with its last job's iterations and batches alone where no command of nalb began the run.

    The jobs of a command are rounds of one run. Else each job is a run by itself: somebody started a script again, on the same
    record and perhaps on other machines.
    """
    if (run_dir / "run.json").exists() or is_of_command(run_dir):
        return timeline
    timeline = replace(timeline, batches=timeline.batches[timeline.batches_before :], batches_before=0)
    if len(timeline.begins) < 2:
        return timeline
    place, noticed = timeline.begins[-1]
    last = [step for step in timeline.ordered() if step.place >= place]
    steps = {scheme: [step for step in last if step.event.scheme == scheme] for scheme in timeline.steps}
    steps = {scheme: own for scheme, own in steps.items() if own}
    shared = timeline.shared_uplinks[noticed:]
    return replace(
        timeline, steps=steps, nodes=last[-1].nodes, shared_uplinks=shared, left_out=len(timeline.begins) - 1
    )


def without_iterations(run_dir: Path, timeline: Timeline) -> InputError:
    """What to tell of a run directory whose own samples.jsonl, which is `timeline`, has no iterations."""
    parts = sorted(path.parent for path in run_dir.glob("*/samples.jsonl"))
    if found := [str(part) for part in parts if (own := read_timeline(part)).has_events or own.tokens]:
        return InputError(f"{run_dir} has no iterations of its own: give one of {listed(found)}")
    if timeline.failure:
        return InputError(f"{run_dir} has no iterations, since the job failed: {timeline.failure}")
    return InputError(
        f"{run_dir} has no iterations: wait for the first one if the job still runs, or give another run directory; `nalb launch`"
        " with scheme stock, p3 or gloo notes none, nor do PyTorch's jobs on one node; `nalb compare` does"
    )


def _run_of(timeline: Timeline) -> RunFile:
    """The events of a job as run.json would have them; NaN where they do not tell."""
    steps = timeline.ordered()
    layout = steps[-1].layout
    results = {
        scheme: SchemeResult(
            communication_s=[step.communication_s for step in own],
            iteration_s=[step.iteration_s for step in own],
            samples_per_min=math.nan,
            plan_wait_s=[max(step.event.plan_wait_s.values(), default=0.0) for step in own],
            link_error=None,
        )
        for scheme, own in timeline.steps.items()
    }
    bound_s = next((step.event.bound_s for step in steps if step.event.bound_s is not None), math.nan)
    model_bytes = 0 if layout is None else values_bytes(layout)
    return RunFile("", "launch", len(timeline.nodes), model_bytes, bound_s, results)


def values_bytes(layout: LayoutEvent) -> int:
    """The bytes of all values that a script sums in an iteration, in whatever precision they travel."""
    if layout.tensors is None:
        return layout.model_bytes
    return sum(size_bytes(elements, value_dtype(dtype)) for _, elements, dtype, _ in layout.tensors)


def read_timeline(run_dir: Path) -> Timeline:
    """Read samples.jsonl alone, as `nalb launch` writes no run.json. Raises InputError, which names the fault."""
    record, path = Timeline(), run_dir / "samples.jsonl"
    previous_s, place = 0.0, 0
    nodes: list[str] = []  # of the newest job
    rows: dict[int, tuple[int, SamplesEvent]] = {}  # of iterations under way, with the byte of each event
    readies, layouts = Readies(), Layouts()
    step: Step | None = None
    before: int | None = None  # shared uplinks noticed before a job that has no iteration yet
    batches_before = 0  # batches of jobs before the newest one
    for number, (at_byte, event) in enumerate(placed_events(run_dir), 1):
        require_possible(event, f"{path}, event {number}")
        if isinstance(event, ReadyEvent):
            nodes, record.servers, rows, previous_s = event.nodes, event.servers, {}, event.at_s
            readies.take(event)
            record.name_nodes(nodes)
            before, batches_before = len(record.shared_uplinks), len(record.batches)
        elif isinstance(event, LayoutEvent):
            layouts.take(event)
        elif isinstance(event, BatchEvent):
            record.batches_before = batches_before
            record.batches.append(event)
        elif isinstance(event, SamplesEvent):
            rows[event.iteration] = at_byte, event
        elif isinstance(event, ChangeEvent):
            record.changes.append(event)
        elif isinstance(event, AbortEvent | FailureEvent):
            record.failure = printable(event.words)
        elif isinstance(event, SharedUplinkEvent):
            record.shared_uplinks.append(event)
        elif isinstance(event, TokenShapeEvent):
            if event.iteration == 0:
                record.shapes, record.tokens = [], []
            record.shapes.append(event)
        elif isinstance(event, TokensEvent):
            nodes = nodes or event.workers
            record.name_nodes(nodes)
            record.tokens.append(event)
        elif isinstance(event, IterationEvent):
            nodes = nodes or list(event.estimate.up if event.estimate else event.communication_s)
            record.name_nodes(nodes)
            byte, own = rows.pop(event.iteration, (0, SamplesEvent(at_s=0.0, iteration=event.iteration, rows=[])))
            stored = StoredRows(path, byte, len(own.rows)) if own.rows else ()
            begin_s = min(previous_s or event.at_s, event.at_s)
            ready, layout = readies.of(event), layouts.of(event)
            is_first = step is None or step.ready is not ready or not follows(event, step.event)
            own_nodes = nodes if ready is None else ready.nodes
            step = Step(place, begin_s, event, stored, own.at_s, ready, layout, is_first, own_nodes)
            _check_rows(own.rows, own_nodes, f"{path}, event {number}")
            record.steps.setdefault(event.scheme, []).append(step)
            if before is not None:
                record.begins.append((place, before))
                record.batches_before = batches_before
                before = None
            previous_s, place = event.at_s, place + 1
    record.has_events = place > 0
    return record


def _check_rows(rows: Collection[Row], nodes: Sequence[str], where: str) -> None:
    for source, target, _, sent_bytes, start_us, end_us in rows:
        if not (0 <= source < len(nodes) and 0 <= target < len(nodes)):
            raise InputError(f"{where}: samples name node {max(source, target)} of {len(nodes)}; restore the file")
        in_time = -LONGEST_US <= start_us <= end_us <= LONGEST_US
        if not (in_time and 0 <= sent_bytes <= LARGEST_BYTES):
            raise InputError(
                f"{where}: a sample of {sent_bytes} bytes from {start_us} to {end_us} us; restore the file"
            )


def _check_agreement(record: Record, path: Path) -> None:
    """Raise InputError unless both files may be of one run: no scheme may have more iterations than run.json states."""
    for scheme, steps in record.steps.items():
        result = record.run.schemes.get(scheme)
        if result is None or len(result.communication_s) < len(steps):
            counted = 0 if result is None else len(result.communication_s)
            raise InputError(
                f"{path}: has {len(steps)} iterations of scheme {scheme!r} where run.json has {counted}: "
                "put the two files of one run together"
            )
