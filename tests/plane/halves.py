"""Rounding to two bytes by distances, where codecs work on bits."""

import numpy as np


def bfloat16(values):
    """The nearest bfloat16 of each float32, ties to even, as float32."""
    low = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # toward zero
    up = (low.view(np.uint32) + np.uint32(0x10000)).view(np.float32)  # away from it; infinity after the largest
    with np.errstate(all="ignore"):
        beyond = np.where(np.isinf(up), np.copysign(2.0**128, low.astype(np.float64)), up)
        below, above = np.abs(values - low.astype(np.float64)), np.abs(beyond - values)
    is_odd = (low.view(np.uint32) >> np.uint32(16)) & np.uint32(1) == 1
    nearest = np.where((below > above) | ((below == above) & is_odd), up, low)
    return np.where(np.isfinite(values), nearest, values)


def rounded_to(dtype, values):
    """Values as this dtype has them; those of two bytes are float32 in memory."""
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    return bfloat16(values) if dtype == "bfloat16" else values
