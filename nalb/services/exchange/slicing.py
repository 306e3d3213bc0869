"""The numbers that tensors are cut by: as a block asks, else as its scheme or the measured granularity says. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from nalb.planning.granularity import Granularity
from nalb.planning.precisions import STEPS
from nalb.planning.slices import NUM_PROBE
from nalb.protocol.wire import RunBlock
from nalb.schemes import Scheme


class SlicingOptions(NamedTuple):
    """How tensors become slices, where it is not the same for all jobs."""

    alpha_bytes: float
    fixed_slice_bytes: float | None = None  # in place of what alpha gives
    num_probe: int = NUM_PROBE  # probe slices per server
    precision: str = STEPS[0]  # in which sums of float32 values are answered


class Slicing:
    """The present numbers, and those that a block wants."""

    def __init__(self, alpha_bytes: float | None, schemes: Mapping[str, Scheme], precision: str):
        """alpha_bytes: None where iterations decide it. precision: of the first answers."""
        self.granularity, self.precision = Granularity(alpha_bytes), precision
        self.present = SlicingOptions(self.granularity.alpha_bytes, precision=precision)
        self._schemes = schemes

    def wanted(self, block: RunBlock) -> SlicingOptions:
        """The numbers that this block wants."""
        scheme = self._schemes.get(block.scheme)  # an unknown one is refused where it is to decide
        size_bytes = block.slice_bytes or (scheme.fixed_slice_bytes if scheme else None)
        alpha_bytes = block.alpha_bytes or self.granularity.alpha_bytes
        return self.present._replace(
            alpha_bytes=alpha_bytes,
            fixed_slice_bytes=size_bytes,
            num_probe=NUM_PROBE if block.probes else 0,
            precision=self.precision,
        )

    def change(self, block: RunBlock) -> bool:
        """Take over the numbers that this block wants; return whether they are new."""
        before, self.present = self.present, self.wanted(block)
        return self.present != before
