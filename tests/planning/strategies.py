"""Random input for the planner's laws, and a cost model written anew from the messages to hold it against."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from nalb.planning.nodes import Capacities, Node
from nalb.planning.slices import Layout, Tensor, build_layout

laws = settings(max_examples=60)

rates = st.floats(1e3, 1e10)
model_sizes = st.integers(1, 10**9)
peers = st.integers(2, 12).map(lambda count: [Node(f"n{i}") for i in range(count)])
roles = st.sampled_from([(True, True), (True, False), (False, True)])


@st.composite
def mixed_nodes(draw: st.DrawFn) -> list[Node]:
    """Any kinds of nodes, with at least one worker and one server."""
    kinds = draw(st.lists(roles, min_size=1, max_size=8))
    if not any(is_worker for is_worker, _ in kinds):
        kinds.append((True, False))
    if not any(is_server for _, is_server in kinds):
        kinds.append((False, True))
    return [Node(f"n{i}", *kind) for i, kind in enumerate(kinds)]


@st.composite
def networks(draw: st.DrawFn, kinds: st.SearchStrategy[list[Node]], with_pairs: bool) -> tuple[list[Node], Capacities]:
    """Nodes, and a rate for each direction of each, with caps on some pairs."""
    nodes = draw(kinds)
    size = len(nodes)
    up, down = (draw(st.lists(rates, min_size=size, max_size=size)) for _ in range(2))
    pairs: dict[tuple[int, int], float] = {}
    if with_pairs and size > 1:
        pair = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda ends: ends[0] != ends[1])
        pairs = draw(st.dictionaries(pair, rates, max_size=6))
    return nodes, Capacities.from_lists(up, down, pairs)


@st.composite
def tensor_lists(draw: st.DrawFn) -> list[Tensor]:
    """Tensors of several sizes, dtypes and groups, with something in them."""
    rows = draw(
        st.lists(
            st.tuples(
                st.one_of(st.integers(0, 40), st.integers(0, 300_000)),
                st.sampled_from(["float32", "float32", "float16", "float64"]),
                st.integers(0, 2),
            ),
            min_size=1,
            max_size=20,
        )
    )
    rows.append((draw(st.integers(1, 500_000)), "float32", 3))
    rows.sort(key=lambda row: row[2])
    return [Tensor(f"t{i}", *row) for i, row in enumerate(rows)]


def simple_layout(model_elements: int, num_servers: int, alpha_bytes: float = 4000.0) -> Layout:
    """One float32 tensor."""
    tensors = [Tensor("model", model_elements, "float32")]
    return build_layout(tensors, num_nodes=num_servers, num_servers=num_servers, alpha_bytes=alpha_bytes)


def traffic_bytes(nodes: list[Node], shares: np.ndarray) -> np.ndarray:
    """Bytes on each directed pair, shape (N, N), message by message; loopback is free."""
    sent = np.zeros((len(nodes), len(nodes)))
    for i, worker in enumerate(nodes):
        for j, server in enumerate(nodes):
            if worker.is_worker and server.is_server and i != j:
                sent[i, j] += shares[j]  # push
                sent[j, i] += shares[j]  # answer
    return sent


def time_by_messages(nodes: list[Node], shares: np.ndarray, capacities: Capacities) -> float:
    """The completion time from the traffic matrix alone."""
    sent = traffic_bytes(nodes, shares)
    times = [0.0, *(sent.sum(axis=1) / capacities.up), *(sent.sum(axis=0) / capacities.down)]
    times += [sent[pair] / rate for pair, rate in capacities.pairs.items()]
    return float(max(times))
