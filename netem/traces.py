"""Traces: a link's rate over time, read from a file's text. Pure: no file and no clock; network_file.py reads the files.

There are two formats, told apart by the number of columns. `#` begins a comment; spaces or commas separate columns.

- Rates: seconds, Mbit/s and, in every line or in none, the delay in ms. A line holds until the time of the next. The first line's
  time is 0 s. The last line ends the round: a trace that loops begins anew at that time, one that holds keeps the last numbers.
- Mahimahi's packet deliveries: one whole number in each line, the millisecond by whose end a packet of 1,500 bytes may have left.
  tc takes rates, so packets are counted over pieces of COUNTED_MS. The last piece is up to half a piece shorter or longer, so that
  pieces fill the round. A round shorter than one and a half pieces is one piece. A packet counts with its Ethernet header, as tc
  counts it. Even at a constant rate, pieces differ when a packet falls on the other side of a border. So if each piece differs by
  less than one packet from what the round's mean rate gives, the mean is the rate of the whole round.
"""

import bisect
import itertools
import math
import reprlib
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from nalb.errors import InputError
from nalb.units import BITS_PER_BYTE, HEADER_BYTES, MBPS, SEGMENT_BYTES

COUNTED_MS = 500
FRAME_BYTES = SEGMENT_BYTES + HEADER_BYTES  # of a packet of 1,500 bytes
SAME_S = 1e-6  # two computations of one moment differ by less, two moments of a file by more
LOW_DELAY_MS = 0.1  # a link that begins without a delay cannot get one later: nothing is there to delay packets
LOW_STEP_S = 0.01  # changes that are closer together cannot be made in time
HIGH_LENGTH_S = 1e6  # twelve days: longer is another unit, such as milliseconds since 1970


class TraceStep(NamedTuple):
    """A link's rate and delay from a moment on."""

    at_s: float
    mbps: float
    delay_ms: float | None  # None: as the network file says


class Trace(Struct, frozen=True):
    """A checked trace: the steps of a link's rate and delay."""

    steps: tuple[TraceStep, ...]  # by time, each unlike the one before; the first at 0 s
    length_s: float  # of a round
    is_looped: bool  # whether it begins anew at its end; else the last step holds on

    def at(self, elapsed_s: float) -> TraceStep:
        """The step that holds at a moment, in seconds after the start."""
        phase_s = max(elapsed_s, 0.0) + SAME_S
        if self.is_looped:
            phase_s %= self.length_s
        return self.steps[bisect.bisect_right(self.steps, phase_s, key=lambda step: step.at_s) - 1]

    @property
    def is_constant(self) -> bool:
        """Whether all numbers stay what they are at 0 s."""
        return not self._changes_s()

    def moments_s(self) -> Iterator[float]:
        """Yield the moments after 0 s at which numbers change, by time; endless where the trace loops and is not constant."""
        changes_s = self._changes_s()
        turns = itertools.count() if changes_s and self.is_looped else range(1)
        for turn in turns:
            yield from (turn * self.length_s + at_s for at_s in changes_s if turn or at_s)

    def _changes_s(self) -> list[float]:
        """The moments of a round at which numbers change. 0 s is one of them if a round ends with other numbers than it begins."""
        steps = [step for step in self.steps if not self.is_looped or step.at_s < self.length_s]
        before = [steps[-1] if self.is_looped else steps[0], *steps]
        return [step.at_s for last, step in zip(before, steps, strict=False) if last[1:] != step[1:]]


def parse_trace(text: str, source: str, mbps: tuple[float, float], high_delay_ms: float, is_looped: bool) -> Trace:
    """Read and check the text of a trace. `source` names it in messages; `mbps` is the lowest and highest rate of a link.

    A packet delivery file may have pieces without any packet: these get the lowest rate. Raises InputError.
    """
    rows = [
        (number, line.partition("#")[0].replace(",", " ").split()) for number, line in enumerate(text.splitlines(), 1)
    ]
    rows = [(number, words) for number, words in rows if words]
    if not rows:
        raise InputError(f"{source}: is empty: give lines of seconds and Mbit/s, or of milliseconds")
    columns = len(rows[0][1])
    numbers: list[list[float]] = []
    for number, words in rows:
        if len(words) != columns or columns > 3:
            raise InputError(f"{source}: line {number} has {len(words)} columns: give 1, 2 or 3, the same in all lines")
        try:
            row = [float(word) for word in words]
        except ValueError:
            row = [math.nan]
        if not all(map(math.isfinite, row)):
            raise InputError(f"{source}: line {number} is {reprlib.repr(' '.join(words))}: give numbers alone")
        numbers.append(row)
    places = [f"{source}: line {number}" for number, _ in rows]
    if columns == 1:
        return _of_deliveries([row[0] for row in numbers], places, mbps, is_looped)
    return _of_rates(numbers, places, mbps, high_delay_ms, is_looped)


def _of_rates(
    rows: list[list[float]], places: list[str], mbps: tuple[float, float], high_delay_ms: float, is_looped: bool
) -> Trace:
    last_s = -LOW_STEP_S
    for (at_s, rate_mbps, *delay_ms), place in zip(rows, places, strict=True):
        if not at_s >= last_s + LOW_STEP_S - SAME_S or (last_s < 0 and at_s != 0):
            raise InputError(
                f"{place} is of {at_s:g} s: begin with 0 and give times that rise by {LOW_STEP_S:g} s or more"
            )
        if at_s > HIGH_LENGTH_S:
            raise InputError(f"{place} is of {at_s:g} s: give seconds from 0 to {HIGH_LENGTH_S:g}")
        if not mbps[0] <= rate_mbps <= mbps[1]:
            raise InputError(f"{place} says {rate_mbps:g} Mbit/s: give {mbps[0]:g} to {mbps[1]:g}")
        if delay_ms and not LOW_DELAY_MS <= delay_ms[0] <= high_delay_ms:
            raise InputError(f"{place} says a delay of {delay_ms[0]:g} ms: give {LOW_DELAY_MS:g} to {high_delay_ms:g}")
        last_s = at_s
    if is_looped and len(rows) < 2:
        raise InputError(f"{places[0]} is the only one: give a last line, at whose time the trace begins anew")
    steps = [TraceStep(row[0], row[1], row[2] if len(row) > 2 else None) for row in rows]
    return Trace(_distinct(steps), last_s, is_looped)


def _of_deliveries(moments_ms: list[float], places: list[str], mbps: tuple[float, float], is_looped: bool) -> Trace:
    last_ms = 0.0
    for at_ms, place in zip(moments_ms, places, strict=True):
        if not (at_ms >= last_ms and at_ms.is_integer()):
            raise InputError(f"{place} is {at_ms:g}: give whole milliseconds that do not fall")
        if at_ms > HIGH_LENGTH_S * 1000:
            raise InputError(f"{place} is {at_ms:g}: give milliseconds from 0 to {HIGH_LENGTH_S * 1000:g}")
        last_ms = at_ms
    if last_ms < 1:
        raise InputError(f"{places[-1]} is 0: the last packet's millisecond is the trace's length, so give 1 or more")
    pieces = max(int(last_ms / COUNTED_MS + 0.5), 1)  # the last may be up to half shorter, or longer
    counts = [0] * pieces
    for at_ms in moments_ms:
        counts[min(max(int(at_ms) - 1, 0) // COUNTED_MS, pieces - 1)] += 1
    lengths_ms = [*[COUNTED_MS] * (pieces - 1), last_ms - COUNTED_MS * (pieces - 1)]
    even = [len(moments_ms) * length_ms / last_ms for length_ms in lengths_ms]
    if all(abs(count - one) < 1 for count, one in zip(counts, even, strict=True)):
        counts, lengths_ms = [len(moments_ms)], [last_ms]
    steps = []
    for piece, (count, length_ms) in enumerate(zip(counts, lengths_ms, strict=True)):
        begin_ms = piece * COUNTED_MS
        rate_mbps = count * FRAME_BYTES * BITS_PER_BYTE / (length_ms / 1000) / MBPS
        if rate_mbps > mbps[1]:
            raise InputError(f"{places[-1]}: {rate_mbps:g} Mbit/s from {begin_ms} ms on: give at most {mbps[1]:g}")
        steps.append(TraceStep(begin_ms / 1000, max(rate_mbps, mbps[0]), None))
    return Trace(_distinct(steps), last_ms / 1000, is_looped)


def _distinct(steps: list[TraceStep]) -> tuple[TraceStep, ...]:
    """The steps less those that change nothing, since setting a rate fills the link's bucket."""
    kept = steps[:1]
    kept += [step for before, step in itertools.pairwise(steps) if before[1:] != step[1:]]
    return tuple(kept)
