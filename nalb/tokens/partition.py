"""Cuts a model into sub-models: layers that need about the same batch to be fast go together (Geng et al., IV-A). Pure.

A layer's threshold batch is the smallest measured one at which it computes at a fraction f of its peak throughput. Consecutive
layers whose thresholds lie in the same bin, floor(threshold / 16), make up one sub-model. The paper does not give f: with 0.92 the
authors' timings lead to their cuts of VGG19, with 0.90 and 0.95 they do not.

Model parallelism cuts by time instead (`stages`).
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from nalb.errors import InputError

FULL = 0.92  # f
BIN = 16  # samples: Geng et al., IV-A
BISECTIONS = 50  # of the slowest stage's time: to about the last digit of a float

Curve = Mapping[int, float]  # batch in samples -> seconds that it takes


def threshold_batch(curve: Curve, full: float = FULL) -> int:
    """The smallest batch b with b / t(b) >= full x max b' / t(b'). Raises InputError."""
    if not curve or min(curve) < 1 or not all(0 < seconds < float("inf") for seconds in curve.values()):
        raise InputError(f"timings {dict(curve)}: give seconds above 0 for at least one batch of 1 or more")
    if not 0 < full <= 1:
        raise InputError(f"a fraction {full:g} of the peak throughput: give one above 0, at most 1")
    peak = max(batch / seconds for batch, seconds in curve.items())
    return min(batch for batch, seconds in curve.items() if batch / seconds >= full * peak)


def partition(thresholds: Sequence[int], bin_samples: int = BIN) -> list[range]:
    """The sub-models as ranges of layers, counted from 0. thresholds: the threshold batch of each layer, in order."""
    bins = [threshold // bin_samples for threshold in thresholds]
    cuts, start = [], 0
    for _, layers in groupby(bins):
        end = start + len(list(layers))
        cuts.append(range(start, end))
        start = end
    return cuts


def stages(seconds: Sequence[float], count: int) -> list[range]:
    """`count` ranges of layers, counted from 0, whose slowest takes least time. seconds: of each layer, in order.

    Bisection finds the slowest one's time, with greedy cuts for each tried time. Raises InputError where there are fewer layers.
    """
    if not 1 <= count <= len(seconds):
        raise InputError(
            f"{count} stages of {len(seconds)} layers: give at least 1, at most as many as there are layers"
        )
    low, high = max(seconds), sum(seconds)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_greedy(seconds, middle)) <= count else (middle, high)
    starts = _greedy(seconds, high)
    while len(starts) < count:  # fewer stages were as fast: the longest is cut in two
        longest = max(_ranges(starts, len(seconds)), key=len)
        starts = sorted([*starts, (longest.start + longest.stop) // 2])
    return _ranges(starts, len(seconds))


def _ranges(starts: Sequence[int], end: int) -> list[range]:
    return [range(low, high) for low, high in zip(starts, [*starts[1:], end], strict=True)]


def _greedy(seconds: Sequence[float], most: float) -> list[int]:
    """The first layers of stages, as few as possible, of which none takes longer than `most`."""
    starts, taken = [0], 0.0
    for place, one in enumerate(seconds):
        if taken + one > most * (1 + 1e-12) and place > starts[-1]:
            starts.append(place)
            taken = 0.0
        taken += one
    return starts
