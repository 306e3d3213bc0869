import copy
import json
import math

import numpy as np
import pytest

from nalb.errors import InputError
from nalb.events import decode_line
from nalb.measurement.samples import samples_of
from nalb.planning.nodes import Capacities, Node
from nalb.planning.slices import Tensor, build_layout
from nalb.planning.stock import route
from nalb.simulation.exchange import exchange
from nalb.simulation.noise import Noise
from nalb.simulation.recorded import Compared, Medians, median_error, seen, simulate_events

NAMES = ["n0", "n1", "n2"]
SERVERS = ["n2", "n0", "n1"]  # by rank
TENSORS = [("0", 300_000, "float32", 0), ("1", 1_200_000, "float32", 0), ("7", 50_000, "float32", 0)]
RATES = [5e6, 10e6, 20e6]
CONFIGURED = {side: dict(zip(NAMES, RATES, strict=True)) for side in ("up", "down")}
NODES, CAPACITIES = [Node(name) for name in NAMES], Capacities.from_lists(RATES, RATES)
LAYOUT = build_layout([Tensor(*row) for row in TENSORS], num_nodes=3, num_servers=3, alpha_bytes=1000.0)
RANKS = (np.arange(len(LAYOUT.slices)) % 3).tolist()


def iteration(number, scheme, took_s, ranks, window):
    plan = {"event": "plan", "at_s": 1.0, "iteration": number, "scheme": scheme, "reason": "because",
            "inflight_bytes": window, "server_of_slice": ranks}  # fmt: skip
    done = {"event": "iteration", "at_s": 2.0, "iteration": number, "scheme": scheme, "configured": CONFIGURED,
            "communication_s": {"n0": took_s, "n1": took_s / 2, "n2": took_s}, "measured": True}  # fmt: skip
    return [plan, {"event": "samples", "at_s": 1.5, "iteration": number, "rows": []}, done]


def simulate_dicts(events, *arguments, **more) -> list[Compared]:
    """simulate_events of what a file says."""
    return simulate_events((decode_line(json.dumps(event).encode()) for event in events), *arguments, **more)


EVENTS = [
    {"event": "ready", "at_s": 0.0, "nodes": NAMES, "servers": SERVERS},
    {"event": "layout", "at_s": 0.1, "model_bytes": LAYOUT.model_bytes, "alpha_bytes": 1000.0, "tensors": TENSORS},
    *iteration(0, "exact", 3.0, RANKS, 2_000_000),
    *iteration(1, "stock", 4.0, [], 0),
    *iteration(2, "p3", 4.0, [], 0),
    *iteration(3, "exact", 3.5, RANKS, 2_000_000),
]


def test_exactly_the_recorded_plan_is_simulated():
    by_rank = np.array([2, 0, 1])
    exact_s = exchange(NODES, CAPACITIES, LAYOUT.sizes_bytes, by_rank[RANKS], 2_000_000).time_s
    sizes, ranks = route([Tensor(*row) for row in TENSORS], 3, [0, 1, 7])
    stock_s = exchange(NODES, CAPACITIES, sizes, by_rank[ranks]).time_s
    found = [(one.scheme, one.iteration, one.measured_s, one.simulated_s) for one in simulate_dicts(EVENTS)]
    assert found == [("exact", 0, 3.0, exact_s), ("stock", 1, 4.0, stock_s), ("exact", 3, 3.5, exact_s)]


def test_errors_are_parts_of_what_was_measured():
    exact, late, none = (Compared("exact", 0, measured_s, 3.0) for measured_s in (3.0, 4.0, 0.0))
    assert (exact.error, late.error) == (0.0, 0.25)
    assert math.isnan(none.error)
    assert Medians.of([exact, late, late]) == Medians(4.0, 3.0)
    assert median_error([exact, late, late]) == 0.25


def test_a_node_that_tells_no_time_is_no_worker():
    events = copy.deepcopy(EVENTS[:5])
    del events[-1]["communication_s"]["n1"]
    (found,) = simulate_dicts(events)
    nodes = [Node("n0"), Node("n1", is_worker=False), Node("n2")]
    by_rank = np.array([2, 0, 1])
    assert found.simulated_s == exchange(nodes, CAPACITIES, LAYOUT.sizes_bytes, by_rank[RANKS], 2_000_000).time_s


def test_the_caps_of_pairs_that_held_when_an_iteration_ended_count():
    events = copy.deepcopy(EVENTS)
    events[-1]["configured"] = CONFIGURED | {"pairs": [("n0", "n1", 1e5)]}
    plain, _, capped = simulate_dicts(events)
    assert plain.simulated_s == simulate_dicts(EVENTS)[0].simulated_s
    assert capped.simulated_s > 2 * plain.simulated_s


@pytest.mark.parametrize(
    ("event", "field"), [(0, "servers"), (1, "tensors"), (2, "server_of_slice"), (4, "configured")]
)
def test_a_run_that_lacks_something_is_refused_by_name(event, field):
    events = copy.deepcopy(EVENTS)
    del events[event][field]
    with pytest.raises(InputError, match=rf"samples.jsonl, event \d: no {field}"):
        simulate_dicts(events)


ROUNDED = {"answers": "float32", "pushes": {"n0": "int8"}}


@pytest.mark.parametrize(
    ("event", "more", "says"),
    [
        (0, {"sites": {"n0": "east", "n1": "east", "n2": "west"}}, "event 1: a job that sums by sites"),
        (1, {"precision": "int8"}, "event 2: gradients that are rounded"),
        (4, {"rounded": ROUNDED}, "event 5: gradients that are rounded"),
        (
            4,
            {"configured": CONFIGURED | {"uplinks": {"east": [9e6, 9e6], "west": [9e6, 9e6]}}},
            "event 5: a job on one level in a network of sites",
        ),
    ],
)
def test_a_run_on_sites_or_in_other_precisions_is_refused(event, more, says):
    events = copy.deepcopy(EVENTS)
    events[event] |= more
    with pytest.raises(InputError, match=says):
        simulate_dicts(events)


def test_an_iteration_without_its_plan_is_refused():
    with pytest.raises(InputError, match="without its plan"):
        simulate_dicts([EVENTS[0], EVENTS[1], *EVENTS[3:5]])


def test_slices_of_their_own_size_without_probes_are_cut_as_the_run_cut_them():
    own = {"fixed_slice_bytes": 50_000.0, "num_probe": 0}
    layout = build_layout(LAYOUT.tensors, num_nodes=3, num_servers=3, alpha_bytes=1000.0, **own)
    ranks = np.arange(len(layout.slices)) % 3
    events = [EVENTS[0], EVENTS[1] | own, *iteration(0, "exact@50000", 3.0, ranks.tolist(), 0)]
    by_rank = np.array([2, 0, 1])
    (found,) = simulate_dicts(events)
    assert found.simulated_s == exchange(NODES, CAPACITIES, layout.sizes_bytes, by_rank[ranks]).time_s


def recorded(samples):
    """The row of samples.jsonl for each message."""
    return [
        [int(one["source"]), int(one["target"]), int(one["is_push"]), int(one["size_bytes"]), round(one["start_s"] * 1e6),
         round(one["end_s"] * 1e6)]
        for one in samples
    ]  # fmt: skip


def test_what_receivers_saw_stands_beside_the_same_with_noise():
    by_rank = np.array([2, 0, 1])
    exact = exchange(NODES, CAPACITIES, LAYOUT.sizes_bytes, by_rank[RANKS], 2_000_000).samples
    events = copy.deepcopy(EVENTS[:5])
    events[3]["rows"] = recorded(exact)
    (found,) = simulate_dicts(events)
    assert found.measured.usual == pytest.approx(1, rel=1e-3)
    assert (found.measured.late_part, found.simulated) == (0, None)
    (blurred,), (again,), (other,) = (simulate_dicts(events, noise=Noise((seed,))) for seed in (1, 1, 2))
    assert blurred == again != other
    assert blurred.measured == found.measured
    assert blurred.simulated.slow < 0.9 < 1.1 < blurred.simulated.fast
    assert blurred.simulated_s != found.simulated_s
    events[3]["rows"].pop()
    (found,) = simulate_dicts(events, noise=Noise((1,)))
    assert found.measured is None
    assert found.simulated == blurred.simulated


def test_messages_are_paired_by_connection_and_order():
    """Two messages on one connection and one on another: twice as fast, a third as fast, read at once."""
    exact = samples_of([(0, 1, 8000, 0.0, 0.2, True), (0, 1, 8000, 0.2, 0.5, True), (1, 0, 8000, 0.0, 0.4, False)])
    read = samples_of([(1, 0, 8000, 0.4, 0.4001, False), (0, 1, 8000, 0.1, 0.2, True), (0, 1, 8000, 0.2, 1.1, True)])
    found = seen(read, exact)
    assert found.usual == pytest.approx(2)
    assert found.late_part == found.at_once_part == pytest.approx(1 / 3)
    assert found.pause_s == pytest.approx(0.9, rel=0.1)
    assert seen(read[:2], exact) is None
    other_way = read.copy()
    other_way["is_push"][0] = True
    assert seen(other_way, exact) is None
