"""Computes how TCP connections share links: by max-min fairness, found by progressive filling."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from nalb.planning.nodes import Capacities, Floats
from nalb.planning.sites import Uplinks

LEVEL_PART = 1e-9  # part of a rate within which resources count as filled together


class SharedLinks:
    """The resources that connections share: nodes' ways out and in, sites' uplinks, caps of pairs, and cores.

    cores: bytes per second, in and out together, that each node's cores handle, shape (N,); None: any number.
    """

    def __init__(self, capacities: Capacities, cores: Floats | None = None):
        self.up, self.down = capacities.up, capacities.down
        self.cores = np.full(len(self.up), np.inf) if cores is None else cores
        self.caps: Floats | None = None  # per directed pair, shape (N, N); None where no pair is capped
        if capacities.pairs:
            self.caps = np.full((len(self.up), len(self.up)), np.inf)
            for pair, rate in capacities.pairs.items():
                self.caps[pair] = rate
        self.shared = None if capacities.uplinks is None else Shared(capacities.uplinks)

    @cached_property
    def alone(self) -> Floats:
        """The rate of a connection without any other one, on each directed pair, bytes/s, shape (N, N)."""
        ends = np.minimum(self.up[:, np.newaxis], self.down)
        if self.shared is not None:
            ends = np.minimum(ends, self.shared.level(*self.shared.full))
        return ends if self.caps is None else np.minimum(ends, self.caps)

    def max_min(self, connections: Floats) -> Floats:
        """The rate of one connection on each directed pair, bytes/s, shape (N, N); 0 where there is none.

        connections: how many are busy on each directed pair, whole numbers, shape (N, N). All rates rise together. When a way out,
        a way in, a node's cores or a cap is full, its connections keep their rate, and the others rise on. In the end no connection
        can get more without taking from one that has no more. A resource is filled as soon as it fills no later than all other
        resources of its connections: the rest of the network cannot change that any more, so many are filled in one round. Cost:
        at most 3 N rounds of O(N^2), one more per cap; usually a few rounds.
        """
        least, rates = np.minimum.reduce, np.zeros(connections.shape)
        rising, ones = connections, np.ones(len(connections))  # rising: connections without a rate yet
        up_left, down_left, cores_left = self.up, self.down, self.cores
        caps = None
        if self.caps is not None:
            caps = np.divide(self.caps, connections, out=np.full(rates.shape, np.inf), where=connections > 0)
        shared = self.shared
        shared_left = np.zeros((2, 0)) if shared is None else shared.full
        while (has_none := rising > 0).any():
            leave, come = rising @ ones, ones @ rising
            fair_up, fair_down = up_left / np.maximum(leave, 1.0), down_left / np.maximum(come, 1.0)
            fair_cores = cores_left / np.maximum(leave + come, 1.0)
            level = np.minimum(np.minimum(fair_up, fair_cores)[:, np.newaxis], np.minimum(fair_down, fair_cores))
            if caps is not None:
                level = np.minimum(level, caps)
            if shared is not None:
                fair_shared = shared_left / np.maximum(shared.summed(rising), 1.0)
                level = np.minimum(level, shared.level(*fair_shared))
            level[~has_none] = np.inf
            edge = (1 + LEVEL_PART) * level
            first_out, first_in = least(edge, axis=1), least(edge, axis=0)
            is_worked = fair_cores <= np.minimum(first_out, first_in)
            full = ((fair_up <= first_out) | is_worked)[:, np.newaxis] | (fair_down <= first_in) | is_worked
            if caps is not None:
                full |= caps <= edge
            if shared is not None:
                full |= shared.stops(fair_shared, edge)
            full &= has_none
            rates[full] = level[full]
            taken = rates * rising * full
            rising = rising * ~full
            left, came = taken @ ones, ones @ taken
            up_left, down_left, cores_left = up_left - left, down_left - came, cores_left - left - came
            if shared is not None:
                shared_left = shared_left - shared.summed(taken)
        return rates


class Shared:
    """The uplinks as resources: connections between two sites share the way out of the one and the way into the other."""

    def __init__(self, uplinks: Uplinks):
        self._site = uplinks.sites.place
        self._leaves = self._site[:, np.newaxis] != self._site
        self.full = np.array([uplinks.up, uplinks.down])  # bytes per second, shape (2, S)

    def ways(self, source: int, target: int) -> list[int]:
        """The ways that a pair of nodes uses, as indices of the flattened `full`; none within a site."""
        there, here = self._site[source], self._site[target]
        return [] if there == here else [int(there), int(self.full.shape[1] + here)]

    def summed(self, of_pair: Floats) -> Floats:
        """The sums of pairs' values, shape (N, N), over the ways out and in, shape (2, S)."""
        between = of_pair * self._leaves
        return np.array([np.bincount(self._site, between.sum(axis=axis), self.full.shape[1]) for axis in (1, 0)])

    def level(self, up: Floats, down: Floats) -> Floats:
        """The lower of two sites' values for each pair of nodes, shape (N, N); inf within a site. up, down: shape (S,)."""
        return np.where(self._leaves, np.minimum(up[self._site][:, np.newaxis], down[self._site]), np.inf)

    def stops(self, fair: Floats, edge: Floats) -> npt.NDArray[np.bool_]:
        """Whether each pair is on an uplink that fills no later than all other resources of its connections, shape (N, N)."""
        first = np.full(self.full.shape, np.inf)
        between = np.where(self._leaves, edge, np.inf)
        for way, axis in enumerate((1, 0)):
            np.minimum.at(first[way], self._site, between.min(axis=axis))
        is_full = fair <= first
        return np.asarray(self._leaves & (is_full[0][self._site][:, np.newaxis] | is_full[1][self._site]))
