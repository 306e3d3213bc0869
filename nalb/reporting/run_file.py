"""A run's directory: run.json (what was compared, see docs/run-files.md) and samples.jsonl (every event)."""

import logging
import math
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from nalb.errors import InputError, MachineError
from nalb.events import AnyEvent, decode_line

T = TypeVar("T")
log = logging.getLogger(__name__)

WARM_UP = 2  # iterations left out of medians: the first has no measurement, the second only one
PART = ".part"  # behind the name of a file that is being written
LONGEST_S = 1e7  # four months: no iteration takes as long, a number above it is not a time


class LinkError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relative error of estimated against configured rates less headers, over saturated node directions."""

    median: float
    p95: float


class SchemeResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scheme's iterations, in order."""

    communication_s: list[float]  # first push to last pull, slowest worker
    iteration_s: list[float]  # from the slowest worker's end to the slowest worker's end
    samples_per_min: float  # Eq. 16 of Cai et al.
    plan_wait_s: list[float]  # longest of the workers
    link_error: LinkError | None


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """run.json."""

    network: str
    workload: str
    nodes: int
    model_bytes: int
    bound_s: float
    schemes: dict[str, SchemeResult]
    goodput_bound_s: float | None = None  # None: not known

    @property
    def goodput_factor(self) -> float:
        """Goodput bound over lossless bound: the same after every change of the network. NaN where it is not known."""
        return math.nan if self.goodput_bound_s is None else ratio(self.goodput_bound_s, self.bound_s)


def steady(values: Sequence[T]) -> list[T]:
    """The iterations that count: those after the warm-up; all of them where there are no more."""
    return list(values[WARM_UP:] or values)


def median_s(values: Sequence[float]) -> float:
    """Median over the iterations that count; NaN for none."""
    return statistics.median(steady(values)) if values else float("nan")


def write_whole(path: Path, content: bytes) -> None:
    """Write a result, all or nothing: that it is there says that its run is finished. MachineError where it cannot be."""
    part = path.with_name(path.name + PART)
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise MachineError(f"{path}: {error.strerror}: make room or choose another --out") from None


def write_json(path: Path, result: msgspec.Struct) -> None:
    """write_whole, for people to read too."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def read_json(path: Path, kind: type[T], absent: str, damaged: str) -> T:
    """What write_json has written. InputError with what to do where it is absent, or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; {absent}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: {error}; {damaged}") from None


def write_run(run_dir: Path, run: RunFile) -> None:
    """Write run.json, all or nothing."""
    write_json(run_dir / "run.json", run)


def read_run(run_dir: Path) -> RunFile:
    """Read and check run.json; InputError says what is wrong with it."""
    path, damaged = run_dir / "run.json", "run `nalb compare` again, or restore the file"
    run = read_json(path, RunFile, "give a run directory that `nalb compare --out` wrote", damaged)
    if wrong := _what_is_wrong(run):
        raise InputError(f"{path}: {wrong}; {damaged}")
    return run


def _what_is_wrong(run: RunFile) -> str | None:
    """What no run can have, by field; None for a sound one."""
    if run.nodes < 1:
        return f"nodes is {run.nodes}"
    if run.model_bytes < 0:
        return f"model_bytes is {run.model_bytes}"
    if not 0 <= run.bound_s <= LONGEST_S:
        return f"bound_s is {run.bound_s:g}"
    if run.goodput_bound_s is not None and not run.bound_s <= run.goodput_bound_s <= LONGEST_S:
        return f"goodput_bound_s is {run.goodput_bound_s:g} where bound_s is {run.bound_s:g}"
    if not run.schemes:
        return "schemes is empty"
    for name, result in run.schemes.items():
        lengths = {len(result.communication_s), len(result.iteration_s), len(result.plan_wait_s)}
        if len(lengths) != 1:
            return f"schemes.{name!r} has lists of different lengths"
        for value in (*result.communication_s, *result.iteration_s, *result.plan_wait_s):
            if not 0 <= value <= LONGEST_S:
                return f"schemes.{name!r} has a time of {value:g} s"
    return None


def read_events(run_dir: Path) -> list[AnyEvent]:
    """The events of run_dir's samples.jsonl, in order; none where it is missing. Kinds that are not known are left out, and so are
    torn lines, with a warning but for the last, which may be half written. InputError names a line that is no event."""
    path = run_dir / "samples.jsonl"
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; make it a readable file, or remove it") from None
    events: list[AnyEvent] = []
    for number, line in enumerate(lines, 1):
        event = event_of(line, f"{path}, line {number}", is_whole=number < len(lines))
        if event is not None:
            events.append(event)
    return events


def event_of(line: bytes, where: str, is_whole: bool = True) -> AnyEvent | None:
    """The event of a line; None for an empty or torn one, or a kind that is not known. InputError where it is no event.

    where: of the line, for people. is_whole: its end has been written, so that a torn one is worth a warning.
    """
    if not line.strip():
        return None
    try:
        return decode_line(line)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}; remove the line, or restore the file") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if is_whole:
            log.warning("%s is torn (%s) and skipped: the disk was full, or its writer was killed", where, error)
        return None


def ratio(part: float, whole: float) -> float:
    """part / whole; NaN where there is no whole."""
    return part / whole if whole > 0 else math.nan
