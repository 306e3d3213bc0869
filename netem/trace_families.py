"""Draws traces from a seed. Pure: the same arguments give the same text on every machine.

- `mobile`: a radio link. The rate's logarithm wanders at random and is pulled back to the middle of its range. In a fade the rate
  is the lowest one for one or two seconds. The delay grows as the rate falls.
- `shared`: a link whose capacity is shared fairly with other flows, which come and go.
"""

import math
import random
from collections.abc import Iterator

from nalb.errors import InputError, did_you_mean, listed
from netem.traces import LOW_STEP_S

FAMILIES = ("mobile", "shared")
STEP_S = 0.5  # between two rates of a radio link
BACK = 0.1  # part of the way to the middle that the rate goes back in a step
SPREAD = 0.15  # standard deviation of a step, in parts of the logarithmic range
FADE_CHANCE = 0.02  # chance that a step begins a fade
FADE_STEPS = (2, 4)
LOW_MS, HIGH_MS = 15.0, 60.0  # delays at the highest and at the lowest rate
MOST_FLOWS = 8
COME_S = 4.0  # mean time between two flows that come
STAY_S = 8.0  # mean time that a flow stays
LOW_GAP_S = 0.2  # least time between two changes


def trace_text(family: str, seed: int, seconds: float, low_mbps: float, high_mbps: float) -> str:
    """The text of a trace file, whose first line is the command that prints it. Raises InputError."""
    if family not in FAMILIES:
        raise InputError(f"--family {family}: {did_you_mean(family, FAMILIES)}give one of {listed(FAMILIES)}")
    if not 1 <= seconds <= 1e5:
        raise InputError(f"--seconds {seconds:g}: give 1 to 100000")
    if not 0.01 <= low_mbps <= high_mbps <= 34_000:
        raise InputError(f"--low {low_mbps:g} and --high {high_mbps:g}: give 0.01 to 34000 Mbit/s, the lower one first")
    seconds = float(f"{seconds:g}")  # as the text says it
    words = f"--family {family} --seed {seed} --seconds {seconds:g} --low {low_mbps:g} --high {high_mbps:g}"
    source = random.Random(words)  # text seeds are hashed with SHA-512: stable across versions
    lines = (
        _mobile(source, seconds, low_mbps, high_mbps)
        if family == "mobile"
        else _shared(source, seconds, low_mbps, high_mbps)
    )
    heading = "# seconds Mbit/s ms" if family == "mobile" else "# seconds Mbit/s"
    return "\n".join([f"# nalb net trace {words}", heading, *lines]) + "\n"


def _mobile(source: random.Random, seconds: float, low_mbps: float, high_mbps: float) -> Iterator[str]:
    place, fading = 0.5, 0  # place: 0 is the lowest rate's logarithm, 1 the highest's
    for step in range(math.ceil((seconds - LOW_STEP_S) / STEP_S)):
        place += BACK * (0.5 - place) + source.gauss(0, SPREAD)
        place = min(max(place, 0.0), 1.0)
        if fading:
            fading -= 1
        elif source.random() < FADE_CHANCE:
            fading = source.randint(*FADE_STEPS)
        now = 0.0 if fading else place
        mbps = low_mbps * (high_mbps / low_mbps) ** now
        yield f"{step * STEP_S:g} {mbps:.2f} {HIGH_MS + (LOW_MS - HIGH_MS) * now:.1f}"
    yield f"{seconds:g} {mbps:.2f} {HIGH_MS + (LOW_MS - HIGH_MS) * now:.1f}"


def _shared(source: random.Random, seconds: float, low_mbps: float, high_mbps: float) -> Iterator[str]:
    at_s, flows = 0.0, 0
    while at_s < seconds - LOW_GAP_S:
        mbps = max(high_mbps / (1 + flows), low_mbps)
        yield f"{at_s:.2f} {mbps:.2f}"
        come, go = 1 / COME_S if flows < MOST_FLOWS else 0.0, flows / STAY_S
        at_s += max(round(source.expovariate(come + go), 2), LOW_GAP_S)
        flows += 1 if source.random() < come / (come + go) else -1
    yield f"{seconds:g} {mbps:.2f}"
