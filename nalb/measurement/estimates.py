"""What an estimator answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nalb.measurement.samples import Floats


@dataclass(frozen=True)
class Estimate:
    """What to plan on, in bytes per second; NaN where nothing is known yet."""

    up: Floats  # per node, shape (N,)
    down: Floats  # per node, shape (N,)
    least: Floats  # of it what is known for sure, up and down, shape (2, N)
    pairs: Mapping[tuple[int, int], float] = field(
        default_factory=dict
    )  # caps of single directed pairs that were found

    @property
    def complete(self) -> bool:
        """Whether every node has both directions."""
        return bool(np.isfinite(self.up).all() and np.isfinite(self.down).all())
