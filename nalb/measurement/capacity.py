"""What is known of the network: each direction's capacity and the caps of pairs, by what iterations prove (evidence.py).

Only what holds iterations up needs to be known. So whatever is not proven is planned on with optimism: if it is slower than
that, it becomes the last to end, and then the iteration proves what it can do. No wrong value keeps itself alive: one that is
too high is proven wrong by the overrun that it causes, one that is too low is exceeded.

    evidence                                      conclusion                             effect on plans
    a direction was full while others waited      that is its capacity                   planned on
    it carried more than was known                at least so much                       planned on with GROWTH
    nothing is known yet                          at least what it carried               equal shares until all have carried
    a pair was held back, both ends had room      the pair has a cap                     planned around
    an end carried much less than before, and     it has room                            its value stays
    few of its pairs were held back
    a capped pair sent faster, without a window   it has no such cap                     the cap is dropped
    most pairs of an end were held back at once   the end became slower meanwhile        only the rest of the iteration counts
    an iteration was late, or the network         the fewest directions that explain     planned on with OPTIMISM
    changed: what is not proven is explained by   the rest carry at least so much
    directions that may have been full
    no proof for 4, 8, ... 64 iterations          at least so much, a cap too            planned on with OPTIMISM
    a proof is refuted by more than NOISE         the network changed: what is not       planned on with OPTIMISM
                                                  proven now is a lower bound
"""

from collections.abc import Iterable

import numpy as np

from nalb.measurement.estimates import Estimate
from nalb.measurement.evidence import evidence
from nalb.measurement.samples import Mask
from nalb.measurement.traffic import Traffic

GROWTH = 2.0  # times what a direction carried that carried more than was known: how much more it can is not known
OPTIMISM = 1.1  # times what a direction has carried: so wrong may a plan be, for one iteration, to learn more
NOISE = 1.15  # times: late readers and bursts make links look so much faster (6 to 18 % measured on wan6-static)
BURST = 1.3  # times its cap: a pair's messages after a pause go so fast (1.1 to 1.4 measured on wan6-asymmetric)
DOUBT = 4  # iterations without proof until it is asked for, twice as many each time up to
SELDOM = 64  # ... so many: each time costs at most OPTIMISM - 1 of an iteration
NEWEST = 0.5  # of the difference to a proof within NOISE is believed at once


class CapacityEstimator:
    """Capacities by proof, lower bounds otherwise."""

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        self._rate = np.full((2, self._num_nodes), np.nan)  # up, down
        self._proven = np.zeros((2, self._num_nodes), dtype=np.bool_)
        self._pairs: dict[tuple[int, int], float] = {}
        self._age = np.zeros((2, self._num_nodes), dtype=np.int64)  # iterations since the last proof
        self._age_of_pair: dict[tuple[int, int], int] = {}
        self._doubt = DOUBT
        self._exceeded = np.zeros((2, self._num_nodes), dtype=np.bool_)

    def observe(self, traffic: Traffic, free: bool = True, late: bool = False) -> bool:
        """Take one iteration in; returns whether it refuted what was known.

        free: it had no window, so that all that could send did. late: it took much longer than its plan said.
        """
        found, slowed_s = evidence(traffic, self._num_nodes, np.nan_to_num(self._rate) / NOISE, self._pairs), None
        while found.slowed_s is not None:
            slowed_s = found.slowed_s
            traffic = traffic.since(slowed_s)
            found = evidence(traffic, self._num_nodes)
        proven = np.isfinite(found.capacity)
        is_near = (found.capacity < NOISE * self._rate) & (self._rate < NOISE * found.capacity)
        smoothed = self._rate + NEWEST * (found.capacity - self._rate)
        exceeded = ~proven & (found.least > 0) & ~(found.least <= NOISE * self._rate)
        differs = proven & ~is_near | exceeded
        is_refuted = bool((~np.isnan(self._rate) & differs).any())
        has_changed = slowed_s is not None or (self._proven & differs).any()
        possible = np.where(np.isnan(found.possible), np.nan, np.fmax(found.possible, found.least))
        lower = (has_changed or late) & ~proven & (possible < self._rate)
        self._rate = np.where(proven, np.where(is_near & self._proven, smoothed, found.capacity), self._rate)
        self._rate = np.where(exceeded, found.least, np.where(lower, possible, self._rate))
        self._proven = proven | self._proven & ~exceeded & ~lower
        carried_more = ~self._proven & (found.least > self._rate)
        self._rate = np.where(carried_more, found.least, self._rate)
        self._exceeded = exceeded
        for pair, cap in list(self._pairs.items()):
            shown = found.carried.get(pair, 0.0) / NOISE if free else found.fast.get(pair, 0.0) / BURST
            if shown > cap:
                del self._pairs[pair]
        self._pairs |= found.caps
        if has_changed:
            self._doubt = 1
        self._question(proven, found.caps)
        return bool(is_refuted or slowed_s is not None)

    def _question(self, proven: Mask, caps: Iterable[tuple[int, int]]) -> None:
        """What was not proven for long is a lower bound from now on. All at once: what it may cost, it costs once."""
        self._age = np.where(proven, 0, self._age + 1)
        self._age_of_pair = {pair: 0 if pair in caps else self._age_of_pair.get(pair, 0) + 1 for pair in self._pairs}
        old = self._proven & (self._age >= self._doubt)
        old_pairs = [pair for pair, age in self._age_of_pair.items() if age >= self._doubt]
        if old.any() or old_pairs:
            self._proven = self._proven & ~old
            for pair in old_pairs:
                self._pairs[pair] *= OPTIMISM
                self._age_of_pair[pair] = 0
        if old.any() or old_pairs or self._doubt < DOUBT:
            self._doubt = min(max(2 * self._doubt, DOUBT), SELDOM)

    def estimate(self) -> Estimate:
        """What to plan on."""
        up, down = np.where(self._proven, self._rate, np.where(self._exceeded, GROWTH, OPTIMISM) * self._rate)
        ends = np.where(np.isfinite(self._rate), np.stack([up, down]), np.inf)
        pairs = {pair: cap for pair, cap in self._pairs.items() if cap < min(ends[0, pair[0]], ends[1, pair[1]])}
        return Estimate(up, down, self._rate, pairs)
