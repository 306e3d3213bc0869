"""What an estimator answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nalb.measurement.samples import Floats
from nalb.planning.sites import Sites


@dataclass(frozen=True)
class UplinkRates:
    """Of the sites of a job that sums by sites, up and down, shape (2, S); bytes per second, NaN where nothing is known yet."""

    rates: Floats  # what to plan on
    least: Floats  # of it what is known for sure

    @property
    def complete(self) -> bool:
        """Whether every uplink has both directions."""
        return bool(np.isfinite(self.rates).all())


@dataclass(frozen=True)
class Estimate:
    """What to plan on, in bytes per second; NaN where nothing is known yet."""

    up: Floats  # per node, shape (N,)
    down: Floats  # per node, shape (N,)
    least: Floats  # of it what is known for sure, up and down, shape (2, N)
    pairs: Mapping[tuple[int, int], float] = field(
        default_factory=dict
    )  # caps of single directed pairs that were found
    uplinks: UplinkRates | None = None  # where sums have two levels

    @property
    def complete(self) -> bool:
        """Whether every node has both directions, and every uplink."""
        nodes = bool(np.isfinite(self.up).all() and np.isfinite(self.down).all())
        return nodes and (self.uplinks is None or self.uplinks.complete)


def uplink_rates(sites: Sites, measured: Floats, of_nodes: Floats) -> Floats:
    """Rates of uplinks, shape (2, S): as measured; of a machine alone in its site, its own. of_nodes: shape (2, N)."""
    rates = np.array(measured, dtype=np.float64)
    for site, members in enumerate(sites.members):
        if len(members) == 1:
            rates[:, site] = of_nodes[:, members[0]]
    return rates
