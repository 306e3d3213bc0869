"""How TCP connections share links: max-min fairness, by progressive filling."""

import numpy as np
import numpy.typing as npt

from nalb.planning.nodes import Capacities, Floats

LEVEL_PART = 1e-9  # resources that fill within this part of a level fill together


class Links:
    """A network as connections see it: each node's way out and in, and the caps of directed pairs."""

    def __init__(self, capacities: Capacities):
        self.up, self.down = capacities.up, capacities.down
        self.caps: Floats | None = None  # per directed pair, shape (N, N); None where no pair is capped
        if capacities.pairs:
            self.caps = np.full((len(self.up), len(self.up)), np.inf)
            for pair, rate in capacities.pairs.items():
                self.caps[pair] = rate

    def max_min(self, connections: Floats) -> Floats:
        """The rate of one connection on each directed pair, bytes/s, shape (N, N); 0 where there is none.

        connections: how many are busy on each directed pair, shape (N, N), >= 0. All rates rise together; when a way
        out, a way in or a cap is full, its connections keep their rate and the others rise on. Nobody can then get
        more without taking from one that has no more. Cost: at most 2 N rounds of O(N^2), one more per cap.
        """
        rate = np.zeros(connections.shape)
        rising = connections.copy()  # the connections that still rise
        up_left, down_left = self.up.copy(), self.down.copy()
        caps = None
        if self.caps is not None:
            caps = np.divide(self.caps, connections, out=np.full(rate.shape, np.inf), where=connections > 0)
        while True:
            fair_up, fair_down = _part(up_left, rising.sum(axis=1)), _part(down_left, rising.sum(axis=0))
            level = min(float(fair_up.min()), float(fair_down.min()))
            if caps is not None:
                level = min(level, float(caps.min()))
            if level == np.inf:
                return rate
            edge = level * (1 + LEVEL_PART)
            full = (fair_up <= edge)[:, np.newaxis] | (fair_down <= edge)
            if caps is not None:
                full |= caps <= edge
                caps[full] = np.inf
            stopped = np.where(full, rising, 0.0)
            rate[stopped > 0] = level
            rising -= stopped
            up_left -= level * stopped.sum(axis=1)
            down_left -= level * stopped.sum(axis=0)


def _part(left: Floats, connections: Floats) -> npt.NDArray[np.float64]:
    """What each connection gets of what is left, infinity where there is none."""
    return np.divide(np.maximum(left, 0.0), connections, out=np.full(len(left), np.inf), where=connections > 0)
