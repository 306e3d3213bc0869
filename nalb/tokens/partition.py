"""Cutting a model into sub-models: layers that need about the same batch to be fast go together (Geng et al., IV-A). Pure.

A layer's threshold batch is the smallest measured one at which it computes a fraction f of its peak throughput. Consecutive layers
whose thresholds lie in the same bin, floor(threshold / 16), make up one sub-model. The paper does not say what f is: 0.92 gives its
cuts of VGG19 from the authors' timings, and 0.90 and 0.95 do not.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from nalb.errors import InputError

FULL = 0.92  # f
BIN = 16  # samples: Geng et al., IV-A

Curve = Mapping[int, float]  # batch -> seconds that it takes


def threshold_batch(curve: Curve, full: float = FULL) -> int:
    """The smallest batch b with b / t(b) >= full x max b' / t(b'). Raises InputError."""
    if not curve or min(curve) < 1 or not all(0 < seconds < float("inf") for seconds in curve.values()):
        raise InputError(f"timings {dict(curve)}: give seconds above 0 for at least one batch of 1 or more")
    if not 0 < full <= 1:
        raise InputError(f"a fraction {full:g} of the peak throughput: give one above 0, at most 1")
    peak = max(batch / seconds for batch, seconds in curve.items())
    return min(batch for batch, seconds in curve.items() if batch / seconds >= full * peak)


def partition(thresholds: Sequence[int], bin_samples: int = BIN) -> list[range]:
    """The sub-models as ranges of layers, counted from 0. thresholds: the batch of each layer, in order."""
    bins = [threshold // bin_samples for threshold in thresholds]
    cuts, start = [], 0
    for _, layers in groupby(bins):
        end = start + len(list(layers))
        cuts.append(range(start, end))
        start = end
    return cuts
