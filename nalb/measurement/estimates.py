"""The answer of an estimator: rates of links."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nalb.measurement.samples import Floats
from nalb.planning.sites import Sites


@dataclass(frozen=True)
class UplinkRates:
    """Rates of the sites' uplinks, up and down, shape (2, S), in bytes per second; NaN where nothing is known yet."""

    rates: Floats  # what to plan on
    least: Floats  # lower bound of `rates`

    @property
    def complete(self) -> bool:
        """Whether both directions of every uplink are known."""
        return bool(np.isfinite(self.rates).all())


@dataclass(frozen=True)
class Estimate:
    """The rates to plan on, in bytes per second; NaN where nothing is known yet."""

    up: Floats  # per node, shape (N,)
    down: Floats  # per node, shape (N,)
    least: Floats  # lower bounds of `up` and `down`, shape (2, N)
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)  # caps of directed pairs that were found
    uplinks: UplinkRates | None = None  # where sums have two levels

    @property
    def complete(self) -> bool:
        """Whether both directions of every node and of every uplink are known."""
        nodes = bool(np.isfinite(self.up).all() and np.isfinite(self.down).all())
        return nodes and (self.uplinks is None or self.uplinks.complete)


def uplink_rates(sites: Sites, measured: Floats, of_nodes: Floats) -> Floats:
    """Rates of uplinks, shape (2, S): as measured; a machine alone in its site has its own rates. of_nodes: shape (2, N)."""
    rates = np.array(measured, dtype=np.float64)
    for site, members in enumerate(sites.members):
        if len(members) == 1:
            rates[:, site] = of_nodes[:, members[0]]
    return rates
