"""Chooses how large slices are: alpha = SLICE_S x rate, for x = sqrt(M alpha / N) (slices.py). Pure.

A slice takes time beside that of its bytes. The faster links are, the more bytes they could have moved in that time, so no single
alpha in bytes fits both 60 Mbit/s and 4 Gbit/s. The rate is measured: an iteration in which a node carries load_bytes each way in
took_s proves that links are at least so fast. That needs no forecasts, so it is known under every scheme that has slices.

    evidence                                        action                                   reason
    fewer than ITERATIONS since the last cut        none                                     a layout's first iterations are slow
    the rate's slice size is within OFF of ours     none                                     near the best size the time is flat
    it is farther off, larger or smaller            alpha follows the best of ITERATIONS     other effects only slow iterations down
    links look slower than LEAST_RATE               alpha stays at that rate's               smaller slices gain nothing there
    a server would have fewer than FEWEST slices    alpha is the one that leaves so many     shares are made of whole slices
    tensors have been cut anew MOST_CUTS times      none                                     layouts take memory for good

Choice not taken: to measure in the job how long a slice takes. Two layouts would tell, but their difference is no larger than the
noise: iterations on busy cores vary by a tenth and more.
"""

from collections import deque

# All figures: docs/results/slice-sizes.md, four nodes on two cores.
SLICE_S = 300e-6  # time that each further slice adds to an iteration where the cores set the pace: 0.27 to 0.34 ms
FIRST_ALPHA_BYTES = 1000.0  # a job's first alpha; best or as good as the best from 25 to 200 Mbit/s
LEAST_RATE = FIRST_ALPHA_BYTES / SLICE_S  # bytes per second; a lower rate counts as this one
OFF = 2.5  # factor of slice sizes: at 500 Mbit/s the first size is 4 times too small, and iterations take 3 % longer
ITERATIONS = 3  # of a layout before it may be replaced: in the first one MXNet makes its buffers
MOST_CUTS = 3  # times that tensors are cut anew
FEWEST = 8  # slices of a server; half as many make iterations 5 % longer, on twelve nodes (Figure 6) 40 %


class Granularity:
    """Chooses alpha_bytes, with which all layouts of a job are cut."""

    def __init__(self, fixed_alpha_bytes: float | None = None):
        self.alpha_bytes = FIRST_ALPHA_BYTES if fixed_alpha_bytes is None else fixed_alpha_bytes
        self._cuts_left = MOST_CUTS if fixed_alpha_bytes is None else 0
        self._rates: deque[float] = deque(maxlen=ITERATIONS)  # bytes per second

    def observe_exchange(
        self, load_bytes: float, took_s: float, model_bytes: int, num_nodes: int, num_servers: int
    ) -> None:
        """Learn from one iteration; may change alpha_bytes.

        load_bytes: the bytes that a node carried each way, on average. took_s: the iteration's exchange, seconds.
        """
        if not self._cuts_left or load_bytes <= 0 or took_s <= 0:
            return
        self._rates.append(load_bytes / took_s)
        most_bytes = model_bytes * num_nodes / (FEWEST * num_servers) ** 2  # x = M / (FEWEST servers)
        wanted = min(SLICE_S * max(*self._rates, LEAST_RATE), max(most_bytes, FIRST_ALPHA_BYTES))
        ratio = (wanted / self.alpha_bytes) ** 0.5  # of the sizes
        if len(self._rates) == ITERATIONS and not 1 / OFF < ratio < OFF:
            self.alpha_bytes = wanted
            self._cuts_left -= 1
            self._rates.clear()
