"""Which precisions pay: the least priced time of all combinations, and only what binds."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nalb.launch.network import configured_capacities, job_nodes
from nalb.planning.nodes import Capacities, CoreTimes, Node, completion_s, load_bytes, loads_bytes
from nalb.planning.precisions import PRICE, STEPS, IterationPace, PrecisionModel, Precisions, bytes_in
from nalb.planning.shares import exact, pairwise
from nalb.planning.slices import Tensor
from netem.network_file import find_network, load_network

TENSORS = [Tensor("w", 3_000_000, "float32"), Tensor("b", 1_000, "float32")]
COMPARED_MOST = 40  # of six nodes' 2,187 combinations, since each is planned alone too
RATES = st.lists(st.floats(10e6, 300e6), min_size=2, max_size=5)


def model_of(up, down=None, pace=None, tensors=TENSORS, **roles):
    nodes = [Node(f"n{i}", **{role: values[i] for role, values in roles.items()}) for i in range(len(up))]
    capacities = Capacities.from_lists(up, down or up)
    return PrecisionModel(nodes, tensors, capacities, pace or IterationPace())


def all_combinations(model):
    for answers in STEPS:
        for pushes in product(STEPS, repeat=len(model.nodes)):
            found = Precisions(answers, pushes)
            if model.pourable([found]):
                yield found


@pytest.mark.jobs
@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(1e4, 1e9), st.floats(1e4, 1e9), st.sampled_from("wsb")), min_size=2, max_size=6),
    st.data(),
)
def test_times_of_several_precisions_are_those_of_exact(drawn, data):
    up, down, roles = zip(*drawn, strict=True)
    roles = ("b", *roles[1:])
    cores = (
        CoreTimes(*np.random.default_rng(len(up)).uniform(0, 1e-7, (2, len(up)))) if data.draw(st.booleans()) else None
    )
    nodes = [Node(f"n{i}", is_worker=role != "s", is_server=role != "w") for i, role in enumerate(roles)]
    capacities = Capacities(np.array(up), np.array(down), {}, cores)
    model = PrecisionModel(nodes, TENSORS, capacities)
    several = list(all_combinations(model))
    if len(several) > COMPARED_MOST:
        several = data.draw(st.lists(st.sampled_from(several), min_size=COMPARED_MOST, max_size=COMPARED_MOST))
    whole_bytes = bytes_in(TENSORS, "float32")
    for one, time_s in zip(several, model.exchanges_s(several), strict=True):
        model_bytes = bytes_in(TENSORS, one.answers)
        scaled = cores and CoreTimes(cores.fixed_s, cores.s_per_byte * whole_bytes / model_bytes)
        alone = Capacities(capacities.up, capacities.down, {}, scaled)
        assert time_s == pytest.approx(exact(one.on(nodes, TENSORS), model_bytes, alone)[1], rel=1e-9)


@pytest.mark.jobs
@settings(max_examples=25)
@given(st.lists(st.floats(10e6, 300e6), min_size=2, max_size=4), st.data())
def test_no_combination_is_much_better(up, data):
    down = [data.draw(st.floats(10e6, 300e6)) for _ in up] if data.draw(st.booleans()) else up
    model = model_of(up, down)
    best_s = min(map(model.priced_s, all_combinations(model)))
    assert model.priced_s(model.choose()) <= 1.02 * best_s


@settings(max_examples=60)
@given(RATES)
def test_no_node_that_could_push_more_for_nothing_pushes_less(up):
    model = model_of(up)
    chosen = model.choose()
    for i, one in enumerate(chosen.pushes):
        for other in STEPS[: STEPS.index(one)]:
            raised = Precisions(chosen.answers, (*chosen.pushes[:i], other, *chosen.pushes[i + 1 :]))
            if model.pourable([raised]):
                assert model.priced_s(raised) >= model.priced_s(chosen) * (1 - 1e-9)


def test_with_a_step_less_one_node_of_wan4_alone_binds(monkeypatch):
    """The node of 50 Mbit/s pushes less, and the answers are rounded for it; those with room on their links push whole values."""
    monkeypatch.setattr("nalb.planning.precisions.STEPS", STEPS[:2])
    network = load_network(find_network("wan4-static"))
    nodes = job_nodes(network)
    model = PrecisionModel(nodes, TENSORS, configured_capacities(network, 0.0))
    chosen = model.choose()
    assert chosen == Precisions("float16", ("float32", "float16", "float32", "float16"))
    monkeypatch.setattr("nalb.planning.precisions.ROOM", 1.0)
    assert model.choose() == Precisions("float16", ("float32", "float32", "float32", "float16"))
    assert model.exchange_s(chosen) == pytest.approx(model.exchange_s(Precisions.all_in("float16", nodes)), rel=1e-6)


@pytest.mark.parametrize("name", ["wan4-static", "wan6-static", "wan6-asymmetric"])
def test_where_everything_is_exposed_nothing_is_lost(name):
    network = load_network(find_network(name))
    nodes = job_nodes(network)
    model = PrecisionModel(nodes, TENSORS, configured_capacities(network, 0.0))
    chosen = model.choose()
    assert model.exchange_s(chosen) <= 1.03 * model.exchange_s(Precisions.all_in("int8", nodes))
    assert set(chosen.pushes) != {"int8"}  # and not everyone pays for it


def test_equal_fast_links_stay_whole_where_the_exchange_hides_or_something_else_takes_longer():
    up = [1.25e9] * 4
    whole = Precisions.all_in("float32", model_of(up).nodes)
    exchange_s = model_of(up).exchange_s(whole)
    assert model_of(up, pace=IterationPace(0.0, 2 * exchange_s)).choose() == whole
    assert model_of(up, pace=IterationPace(20 * exchange_s, 0.0)).choose() == whole


def test_tensors_of_two_bytes_go_on_to_int8_or_stay():
    half = [Tensor("w", 3_000_000, "bfloat16")]
    model = model_of([50e6] * 4, tensors=half)
    assert model.choose() == Precisions.all_in("int8", model.nodes)
    whole = Precisions.all_in("float32", model.nodes)
    assert model.exchange_s(whole) == model.exchange_s(Precisions.all_in("float16", model.nodes))
    hidden = IterationPace(0.0, model.exchange_s(whole))
    assert model_of([50e6] * 4, pace=hidden, tensors=half).choose() == whole


def test_a_step_that_hides_the_exchange_is_the_last_one():
    up = [50e6] * 4
    model = model_of(up)
    half_s = model.exchange_s(Precisions.all_in("float16", model.nodes))
    chosen = model_of(up, pace=IterationPace(0.0, half_s)).choose()
    assert "int8" not in (chosen.answers, *chosen.pushes)
    assert chosen.answers == "float16"


def test_cores_that_take_as_long_end_the_steps():
    model = model_of([50e6] * 4)
    whole_s = model.exchange_s(Precisions.all_in("float32", model.nodes))
    cores = CoreTimes(np.full(4, whole_s), np.zeros(4))
    slow = PrecisionModel(model.nodes, TENSORS, Capacities(model.capacities.up, model.capacities.down, {}, cores))
    assert slow.choose() == Precisions.all_in("float32", model.nodes)


@pytest.mark.parametrize("up", [[25e6, 6e6], [12e6, 12e6]])
def test_two_workers_do_not_sum_for_nothing(up):
    """One that pushes more than is answered beside one that pushes less: both loads fall where the first one sums."""
    model = model_of(up)
    uneven = Precisions("float16", ("float32", "int8"))
    assert model.exchange_s(uneven) > 0
    assert model.pourable([uneven]) == []
    assert model.choose() == Precisions.all_in("int8", model.nodes)


def test_what_a_step_must_save():
    """One step of everything is worth PRICE of an iteration: a little above it is taken, a little below it is not."""
    up = [50e6] * 4
    model = model_of(up)
    whole, half = (Precisions.all_in(one, model.nodes) for one in STEPS[:2])
    saves_s = model.exchange_s(whole) - model.exchange_s(half)
    for part, is_taken in ((1.05, True), (0.95, False)):
        iteration_s = saves_s / (part * PRICE)
        priced = model_of(up, pace=IterationPace(iteration_s - model.exchange_s(whole), 0.0))
        assert (priced.priced_s(half) < priced.priced_s(whole)) is is_taken


def test_by_sites_all_have_one_precision():
    network = load_network(find_network("geo2x3"))
    nodes = job_nodes(network)
    model = PrecisionModel(nodes, TENSORS, configured_capacities(network, 0.0))
    assert model.choose() == Precisions.all_in("int8", nodes)
    whole_s = model.exchange_s(Precisions.all_in("float32", nodes))
    hidden = PrecisionModel(nodes, TENSORS, model.capacities, IterationPace(0.0, whole_s))
    assert hidden.choose() == Precisions.all_in("float32", nodes)


def test_other_dtypes_travel_whole():
    tensors = [Tensor("a", 100, "float32"), Tensor("b", 100, "float64")]
    assert bytes_in(tensors, "float32") == 1200
    assert bytes_in(tensors, "int4") == 863  # 100 x 0.625 + 800
    alone = model_of([50e6] * 3, tensors=[Tensor("b", 1000, "float64")])
    assert alone.choose() == Precisions.all_in("float32", alone.nodes)


def test_roles():
    """A server without a worker pushes nothing, so its precision is the answers'."""
    model = model_of([20e6, 20e6, 90e6], is_worker=[True, True, False], is_server=[False, False, True])
    chosen = model.choose()
    assert chosen.pushes[2] == chosen.answers
    assert "float32" not in chosen.pushes[:2]


@settings(max_examples=60)
@given(RATES, st.data())
def test_loads_are_what_travels(up, data):
    """Bytes out and in by the formula, beside a count of every push and answer."""
    nodes = [Node(f"n{i}", push_part=data.draw(st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]))) for i in range(len(up))]
    shares = np.array([data.draw(st.floats(0, 1e6)) for _ in up])
    out, into = np.zeros(len(up)), np.zeros(len(up))
    for worker, node in enumerate(nodes):
        for server, share in enumerate(shares):
            if worker != server:
                pushed = node.push_part * share
                out[worker] += pushed
                into[server] += pushed
                out[server] += share
                into[worker] += share
    assert np.allclose(loads_bytes(nodes, shares, float(shares.sum())), [out, into])
    assert np.allclose(load_bytes(nodes, shares, float(shares.sum())), np.maximum(out, into))


@settings(max_examples=60)
@given(st.lists(st.floats(10e6, 300e6), min_size=3, max_size=6), st.data())
def test_exact_shares_are_no_worse_than_others_with_uneven_pushes(up, data):
    down = [data.draw(st.floats(10e6, 300e6)) for _ in up]
    nodes = [Node(f"n{i}", push_part=data.draw(st.sampled_from([0.5, 1.0, 1.5, 2.0]))) for i in range(len(up))]
    capacities, model_bytes = Capacities.from_lists(up, down), 1e7
    shares, time_s = exact(nodes, model_bytes, capacities)
    assert shares.sum() == pytest.approx(model_bytes)
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for _ in range(30):
        other = random.dirichlet(np.ones(len(up))) * model_bytes
        assert time_s <= completion_s(nodes, other, model_bytes, capacities) * (1 + 1e-9)
    assert time_s <= completion_s(nodes, pairwise(nodes, model_bytes, capacities), model_bytes, capacities) * (1 + 1e-9)
