"""Simulates the noise in the times that receivers see, by seed.

    bucket   A shaped direction that carries less than its rate saves up some of the difference. The next message takes the saved
             bytes at once, as many as both its ends, and a cap of its pair, have saved.
    bunch    Connections that share a link send their frames in bunches, one after the other. So part of a message has come when its
             forecast is read. A message that is alone on its way shows the way's rate.
    turn     Connections share a full link in uneven turns. So a message ends later than its mean rate says, a few much later.
    reader   A node's worker and its server pause now and then, and read at the end of a pause all that has come meanwhile.
    stamp    Each reading is late by a little more.

All that depends on a message waits until it is read: a sum, its answer, the next slice of a window. Messages sent before go on, and
links stay as full, since a late turn of one connection is an early turn of another. Choice not taken: unequal rates of connections
instead of turns. In recorded runs speeds differ much more from message to message than from connection to connection.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from nalb.planning.nodes import Capacities, Floats
from nalb.simulation.sharing import Shared

MIN_BURST_BYTES = 7570  # least size of a bucket: five frames, as in netem/shaping.py
LEAST_S = 1e-6  # least time of a message by its receiver's clock


@dataclass(frozen=True)
class Noise:
    """The sizes of the noise, and its seed. The defaults come from recorded runs (docs/simulation.md, "Noise")."""

    seed: tuple[int, ...]
    burst_s: float = 1e-3  # an idle direction saves up the bytes of so many seconds
    bunch_bytes: float = 28_000  # the largest bunch, on a link that many connections share
    turn_bytes: float = 4_500  # half the bytes that a connection carries in the mean delay of a message's end
    run_s: float = 0.1  # mean time between two pauses of a process; exponential
    stall_s: float = 3e-3  # mean length of a pause; exponential
    jitter_s: float = 0.1e-3  # mean delay of every reading; exponential

    def at(self, iteration: int) -> "Noise":
        """The noise of one iteration, with a seed of its own."""
        return replace(self, seed=(*self.seed, iteration))


class SavedBytes:
    """The bytes that the directions, the capped pairs and the uplinks of a network have saved up; all are full at first."""

    def __init__(self, capacities: Capacities, burst_s: float):
        self._nodes = len(capacities.up)
        self._capped = {pair: 2 * self._nodes + k for k, pair in enumerate(capacities.pairs)}
        self._rate = np.concatenate([capacities.up, capacities.down, list(capacities.pairs.values())])
        self._shared, self._first_shared = None, len(self._rate)
        if capacities.uplinks is not None:
            self._shared = Shared(capacities.uplinks)
            self._rate = np.concatenate([self._rate, self._shared.full.ravel()])
        self._depth = np.maximum(MIN_BURST_BYTES, burst_s * self._rate)
        self._saved = self._depth.copy()

    def spare(self, rate_of_pair: Floats) -> Floats:
        """Bytes per second that each bucket gains. rate_of_pair: bytes per second that pairs carry meanwhile, shape (N, N)."""
        carried = [rate_of_pair.sum(axis=1), rate_of_pair.sum(axis=0), [rate_of_pair[pair] for pair in self._capped]]
        if self._shared is not None:
            carried.append(self._shared.summed(rate_of_pair).ravel())
        return np.asarray(np.maximum(self._rate - np.concatenate(carried), 0.0))

    def rest(self, spare: Floats, step_s: float) -> None:
        """Save up for `step_s` seconds. spare: as `spare` gives it."""
        self._saved = np.minimum(self._saved + spare * step_s, self._depth)

    def take_saved(self, source: int, target: int, most_bytes: float) -> float:
        """Take up to `most_bytes` saved bytes on the way from source to target; returns how many pass at once."""
        ways = [source, self._nodes + target]
        if (source, target) in self._capped:
            ways.append(self._capped[source, target])
        if self._shared is not None:
            ways += [self._first_shared + way for way in self._shared.ways(source, target)]
        taken = min(most_bytes, float(self._saved[ways].min()))
        self._saved[ways] -= taken
        return taken


class Readers:
    """The times at which receiving processes read messages."""

    def __init__(self, processes: int, noise: Noise):
        self._noise, self._draw = noise, np.random.default_rng(noise.seed)
        self._draw_of = [np.random.default_rng([*noise.seed, process]) for process in range(processes)]
        self._begin_s: list[list[float]] = [[] for _ in range(processes)]  # when its pauses begin, ascending
        self._end_s = [[0.0] for _ in range(processes)]  # when its pauses end, after a first entry 0

    def read_s(self, process: int, came_s: float) -> float:
        """When a process reads a message that came at `came_s`."""
        begin_s, end_s, draw = self._begin_s[process], self._end_s[process], self._draw_of[process]
        while end_s[-1] <= came_s:
            begin_s.append(end_s[-1] + draw.exponential(self._noise.run_s))
            end_s.append(begin_s[-1] + draw.exponential(self._noise.stall_s))
        return max(came_s, end_s[bisect_right(begin_s, came_s)]) + self._draw.exponential(self._noise.jitter_s)

    def stamps_s(
        self, process: int, size_bytes: float, from_s: float, to_s: float, alone_bytes_per_s: float
    ) -> tuple[float, float]:
        """When a process reads the forecast, and when the message, which was on its way from `from_s` to `to_s`.

        alone_bytes_per_s: the rate of a message that is alone on its way.
        """
        per_byte_s = (to_s - from_s) / size_bytes
        bunch_s = max(0.0, per_byte_s - 1 / alone_bytes_per_s) * self._noise.bunch_bytes
        came_s = min(from_s + bunch_s * self._draw.uniform(), to_s)
        late_s = per_byte_s * self._noise.turn_bytes * self._draw.exponential() ** 2
        start_s = self.read_s(process, came_s)
        return start_s, max(self.read_s(process, to_s + late_s), start_s + LEAST_S)
