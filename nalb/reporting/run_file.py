"""Reads and writes the files of a run directory: run.json (the result, see docs/run-files.md) and samples.jsonl (every event)."""

import logging
import math
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from nalb.errors import InputError, MachineError
from nalb.events import AnyEvent, IterationEvent, TokensEvent, decode_line

T = TypeVar("T")
log = logging.getLogger(__name__)

WARM_UP = 2  # the first iterations, left out of medians: the first has no measurement before it, the second only one
SAMPLES = "samples.jsonl"
PART = ".part"  # the ending of a file that is being written
LONGEST_S = 1e7  # four months; no iteration takes longer, so a larger number is not a time
LONGEST_US = 1e6 * LONGEST_S
LARGEST_BYTES = 1e15  # a larger message means a damaged file
LEVEL = re.compile(r"(F|B|FB)[1-9][0-9]?")
_TORN: set[str] = set()  # files whose first torn line has given a warning: a full disk tears every line


class LinkError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relative error of the estimated rates against the configured rates less headers, over all saturated links."""

    median: float
    p95: float


class SchemeResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scheme's iterations, in order."""

    communication_s: list[float]  # the slowest worker's time from first push to last pull
    iteration_s: list[float]  # the time from the slowest worker's end of one iteration to that of the next
    samples_per_min: (
        float | None
    )  # samples of all workers in a minute, Eq. 16 of Cai et al.; None: the batch is not known
    plan_wait_s: list[float]  # the longest wait of a worker for its plan
    link_error: LinkError | None
    rounds: list[int] | None = None  # the iterations of each run of the user's own script; None: all are of one job
    printed: str | None = None  # the last line that the script printed; None: there is no script, or it printed none

    def steady(self, values: Sequence[T]) -> list[T]:
        """The values of the iterations after the warm-up, which each round has; all values where there are none after it."""
        ends = list(accumulate(self.rounds or [len(values)]))
        return [one for low, high in pairwise([0, *ends]) for one in values[low + WARM_UP : high]] or list(values)

    def median_s(self, values: Sequence[float]) -> float:
        """Median over the iterations after the warm-up; NaN where there are no iterations."""
        return statistics.median(self.steady(values)) if values else math.nan


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of run.json."""

    network: str
    workload: str
    nodes: int
    model_bytes: int
    bound_s: float | None  # None: not known, as on loopback and on hosts
    schemes: dict[str, SchemeResult]
    goodput_bound_s: float | None = None  # None: not known

    @property
    def known_bound_s(self) -> float:
        """The lossless bound; NaN where it is not known."""
        return math.nan if self.bound_s is None else self.bound_s

    @property
    def goodput_factor(self) -> float:
        """Goodput bound over lossless bound, which no change of the network alters. NaN where the goodput bound is not known."""
        return math.nan if self.goodput_bound_s is None else ratio(self.goodput_bound_s, self.known_bound_s)


def steady(values: Sequence[T]) -> list[T]:
    """The values of the iterations after the warm-up; all values where there are none after it."""
    return list(values[WARM_UP:] or values)


def median_s(values: Sequence[float]) -> float:
    """Median over the iterations after the warm-up; NaN where there are no iterations."""
    return statistics.median(steady(values)) if values else float("nan")


def write_whole(path: Path, content: bytes) -> None:
    """Write a result wholly or not at all: its existence means that its run is finished. Raises MachineError."""
    part = path.with_name(path.name + PART)
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise MachineError(f"{path}: {error.strerror}: make room or choose another --out") from None


def write_json(path: Path, result: msgspec.Struct) -> None:
    """Write a Struct as indented JSON that people can read, wholly or not at all. Raises MachineError."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def read_json(path: Path, kind: type[T], absent: str, damaged: str) -> T:
    """Read a file that write_json has written. Raises InputError with the advice `absent` or `damaged`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; {absent}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: {error}; {damaged}") from None


def write_run(run_dir: Path, run: RunFile) -> None:
    """Write run.json, wholly or not at all. Raises MachineError."""
    write_json(run_dir / "run.json", run)


def read_run(run_dir: Path) -> RunFile:
    """Read and check run.json. Raises InputError, which names the fault."""
    path, damaged = run_dir / "run.json", "run `nalb compare` again, or restore the file"
    run = read_json(path, RunFile, "give a run directory that `nalb compare --out` wrote", damaged)
    if wrong := _what_is_wrong(run):
        raise InputError(f"{path}: {wrong}; {damaged}")
    return run


def _what_is_wrong(run: RunFile) -> str | None:
    """The first field with a value that no run can have, in words; None for a sound run."""
    if run.nodes < 1:
        return f"nodes is {run.nodes}"
    if run.model_bytes < 0:
        return f"model_bytes is {run.model_bytes}"
    if run.bound_s is not None and not 0 <= run.bound_s <= LONGEST_S:
        return f"bound_s is {run.bound_s:g}"
    if run.goodput_bound_s is not None and not run.known_bound_s <= run.goodput_bound_s <= LONGEST_S:
        return f"goodput_bound_s is {run.goodput_bound_s:g} where bound_s is {run.known_bound_s:g}"
    if not run.schemes:
        return "schemes is empty"
    for name, result in run.schemes.items():
        lengths = {len(result.communication_s), len(result.iteration_s), len(result.plan_wait_s)}
        if len(lengths) != 1:
            return f"schemes.{name!r} has lists of different lengths"
        if result.rounds is not None and not (min(result.rounds, default=0) >= 0 and {sum(result.rounds)} == lengths):
            return (
                f"schemes.{name!r} has rounds of {sum(result.rounds)} iterations in all, but lists of {lengths.pop()}"
            )
        for value in (*result.communication_s, *result.iteration_s, *result.plan_wait_s):
            if not 0 <= value <= LONGEST_S:
                return f"schemes.{name!r} has a time of {value:g} s"
    return None


def read_events(run_dir: Path) -> list[AnyEvent]:
    """The events of run_dir's samples.jsonl, in order; empty where the file is missing.

    Events of unknown kinds and torn lines are left out. A torn line gives a warning, unless it is the last, which may be half
    written. Raises InputError, which names the line, for a line that is no event.
    """
    return [event for _, event in placed_events(run_dir)]


def placed_events(run_dir: Path) -> Iterator[tuple[int, AnyEvent]]:
    """Yield the same events one by one, each with the byte at which its line begins, so that not all have to be kept."""
    path, at_byte = run_dir / SAMPLES, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                event = event_of(line, f"{path}, line {number}", is_whole=line.endswith(b"\n"))
                if event is not None:
                    yield at_byte, event
                if not line.endswith(b"\n"):
                    return  # it is being written: its rest would count as a line
                at_byte += len(line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; make it a readable file") from None


def event_of(line: bytes, where: str, is_whole: bool = True) -> AnyEvent | None:
    """The event of a line; None for an empty line, a torn line or an event of unknown kind. Raises InputError for a wrong event.

    where: FILE, PLACE: the line's file and its place there. is_whole: whether the line's end is written; the first torn line of a
    file then gives a warning.
    """
    if not line.strip():
        return None
    try:
        return decode_line(line)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}; remove the line, or restore the file") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        file = where.rpartition(", ")[0]
        if is_whole and file not in _TORN:
            _TORN.add(file)
            words = "%s is torn (%s) and skipped, as are all torn lines of the file: the disk was full, or its writer was killed"
            log.warning(words, where, error)
        return None


def require_possible(event: AnyEvent, where: str) -> None:
    """Raise InputError for an event that no run can note. where: FILE, PLACE."""
    if wrong := _impossible(event):
        raise InputError(f"{where}: {wrong}; restore the file, or remove it")


def _impossible(event: AnyEvent) -> str:
    """What is wrong with an event, in words; empty for a sound one."""
    if isinstance(event, TokensEvent):
        return _impossible_tokens(event)
    if isinstance(event, IterationEvent):
        if not event.communication_s:
            return "an iteration of no worker"
        return _no_time((*event.communication_s.values(), *event.iteration_s.values(), event.bound_s or 0.0))
    return ""


def _no_time(values_s: Iterable[float]) -> str:
    return next((f"a time of {value:g} s" for value in values_s if not 0 <= value <= LONGEST_S), "")


def _impossible_tokens(event: TokensEvent) -> str:
    workers = len(event.workers)
    lists = (event.tokens, event.helped, event.compute_s, event.fetch_s, event.fetched_bytes)
    if any(len(one) != workers for one in lists):
        return f"tokens of {workers} workers have lists of other lengths"
    if wrong := _no_time((event.iteration_s, *event.compute_s, *event.fetch_s)):
        return wrong
    counts = (event.iteration, *event.tokens, *event.helped, *event.fetched_bytes)
    if not all(0 <= count <= LARGEST_BYTES for count in counts):
        return "a count of tokens or bytes that cannot be"
    for row in event.rows or ():
        in_time = 0 <= row.given_us <= row.done_us <= LONGEST_US
        if not (in_time and 0 <= row.fetch_us <= LONGEST_US and 0 <= row.compute_us <= LONGEST_US):
            return f"a token from {row.given_us} to {row.done_us} us"
        if not (0 <= row.worker < workers and 0 <= row.owner < workers) or LEVEL.fullmatch(row.level) is None:
            return f"a token {row.level!r} of worker {row.worker} of {workers}"
    return ""


def ratio(part: float, whole: float) -> float:
    """part / whole; NaN where whole is not above 0."""
    return part / whole if whole > 0 else math.nan
