"""Computes figure 4: the training speed of a run's schemes, and the ceilings that its network sets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nalb.compare.comparison import SAMPLES_PER_BATCH
from nalb.errors import InputError
from nalb.planning.nodes import Capacities, Floats, Node, completion_s
from nalb.planning.shares import average, bound_s
from nalb.planning.slices import Tensor
from nalb.planning.stock import route
from nalb.reporting.record import Record
from nalb.reporting.run_file import SchemeResult, steady
from nalb.workloads import bytes_of, load


@dataclass(frozen=True)
class Ceilings:
    """Predicted seconds of an iteration's exchange, without headers, latency and TCP's behaviour."""

    bound_s: float  # with the best shares
    stock_s: float  # with MXNet's own routing
    average_s: float  # with equal shares

    @property
    def over_stock(self) -> float:
        """The highest possible speed over stock's speed."""
        return self.stock_s / self.bound_s

    @property
    def over_average(self) -> float:
        """The highest possible speed over that of equal shares."""
        return self.average_s / self.bound_s


def stock_shares(workload: str, nodes: Sequence[str], servers: Sequence[str]) -> Floats:
    """Bytes that each node's server sums under MXNet's own routing, shape (N,); servers: nodes' names by rank."""
    tensors = [Tensor(t.name, t.elements, t.dtype) for t in load(workload)]
    sizes_bytes, ranks = route(tensors, len(servers))
    index = {name: i for i, name in enumerate(nodes)}
    holder = np.array([index[name] for name in servers])
    return np.bincount(holder[ranks], sizes_bytes, minlength=len(nodes)).astype(np.float64)


def ceilings(workload: str, nodes: Sequence[str], servers: Sequence[str], capacities: Capacities) -> Ceilings:
    """The times that the cost model (planning/nodes.py) gives for the best shares, stock and equal shares.

    Every node has a worker and a server. servers: the nodes' names by server rank.
    """
    both = [Node(name) for name in nodes]
    model_bytes = float(bytes_of(workload))
    return Ceilings(
        bound_s(both, model_bytes, capacities),
        completion_s(both, stock_shares(workload, nodes, servers), model_bytes, capacities),
        completion_s(both, average(both, model_bytes), model_bytes, capacities),
    )


def ceilings_of(record: Record, capacities: Capacities) -> Ceilings:
    """The ceilings of a run; `capacities` has the order of the record's nodes.

    Raises InputError where the file does not give the servers' ranks.
    """
    if sorted(record.servers) != sorted(record.nodes):
        raise InputError("samples.jsonl does not say which node has which server rank: run the comparison again")
    return ceilings(record.run.workload.removeprefix("replay "), record.nodes, record.servers, capacities)


def speed(record: Record, scheme: str) -> float:
    """A scheme's samples per minute in a run."""
    return speed_of(record.run.schemes[scheme], record.run.nodes)


def speed_of(result: SchemeResult, nodes: int) -> float:
    """Samples per minute over the iterations after the warm-up. Source: Cai et al., Eq. 16."""
    times = steady(result.iteration_s)
    return 60.0 * SAMPLES_PER_BATCH * nodes * len(times) / sum(times)
