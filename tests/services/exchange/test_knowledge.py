"""What iterations teach of a job's network and machines."""

from dataclasses import replace

import numpy as np
import pytest

from nalb.measurement.capacity import CapacityEstimator
from nalb.measurement.cores import Work
from nalb.measurement.estimates import Estimate
from nalb.measurement.samples import samples_of
from nalb.planning.nodes import Capacities, completion_s
from nalb.planning.precisions import Precisions, bytes_in
from nalb.protocol import wire
from nalb.schemes import AVERAGE
from nalb.services.exchange.decision import PlanContext, PlanOptions, decide
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.knowledge import FinishedIteration, NetworkKnowledge
from nalb.simulation.exchange import MessageWeight, exchange
from tests.services.exchange.test_decision import JOB, LAYOUT, MEASURED, NAMES, NOTHING, RATES

MODEL_BYTES = LAYOUT.model_bytes
TRUE = Capacities(*RATES, {})
EQUAL = decide(PlanContext(0, LAYOUT, None, needs_equal_shares=False), NOTHING, PlanOptions(AVERAGE)).plan
PREDICTED = replace(EQUAL, predicted_s=1.0)
NONE = samples_of([])


def seen(**facts):
    """How one exchange of equal shares goes on these links."""
    done = exchange(JOB.nodes, TRUE, LAYOUT.sizes_bytes, np.array(EQUAL.server_of_slice), 0, MessageWeight())
    return FinishedIteration(done.samples, done.time_s, **facts)


def test_nothing_is_known_at_first():
    known = NetworkKnowledge(JOB, CapacityEstimator).now
    assert (known.capacities, known.cores, known.configured) == (None, None, None)
    assert known.exchange_s(EQUAL.held_shares, MODEL_BYTES) is None
    assert known.pace(PREDICTED, LAYOUT) is None
    assert not any(known.observations)


def test_one_iteration_teaches_links_servers_and_cores():
    knowledge, cores = NetworkKnowledge(JOB, CapacityEstimator), np.full(4, 2.0)
    before = knowledge.now
    work = Work(np.full(4, 0.1), np.full(4, 0.2), cores)
    assert knowledge.learn(seen(work=work, compute_spread_s=0.5), EQUAL, shows_servers=True).shared_uplinks == []
    known = knowledge.now
    slowest_s = completion_s(JOB.nodes, EQUAL.held_shares, MODEL_BYTES, TRUE)
    assert known.exchange_s(EQUAL.held_shares, MODEL_BYTES, is_planned=False) == pytest.approx(slowest_s, rel=0.1)
    assert known.cores.of_shares(EQUAL.held_shares) == pytest.approx(np.full(4, 0.15), rel=0.01)
    assert known.compute_spread_s == 0.5
    assert [len(window) for window in known.observations] == [1, 1, 1, 1]
    assert before.capacities is None  # what was known then is a value
    knowledge.forget_tensors()
    assert not any(knowledge.now.observations)
    assert knowledge.now.capacities is not None


def test_times_of_servers_that_a_window_kept_in_step_teach_nothing_of_them():
    knowledge = NetworkKnowledge(JOB, CapacityEstimator)
    knowledge.learn(seen(), EQUAL, shows_servers=False)
    assert not any(knowledge.now.observations)
    assert knowledge.now.capacities is not None


def test_an_iteration_without_samples_teaches_only_how_far_apart_workers_computed():
    knowledge = NetworkKnowledge(JOB, CapacityEstimator)
    learned = knowledge.learn(FinishedIteration(NONE, 1.0, compute_spread_s=0.5), EQUAL, shows_servers=True)
    assert learned == (False, [])
    assert (knowledge.now.compute_spread_s, knowledge.now.capacities) == (0.5, None)


def test_delay_adds_round_trips_to_what_links_need():
    near = MEASURED.exchange_s(EQUAL.held_shares, MODEL_BYTES)
    knowledge = NetworkKnowledge(JOB, CapacityEstimator)
    knowledge.note_delay(0.1, is_bbr=True)
    told = knowledge.now
    far = replace(MEASURED, round_trip_s=told.round_trip_s, is_bbr=told.is_bbr)
    assert far.exchange_s(EQUAL.held_shares, MODEL_BYTES) == pytest.approx(near + 3 * 0.1)
    assert far.pace(PREDICTED, LAYOUT).is_bbr


@pytest.mark.parametrize(("round_trip_s", "counted_s"), [(0.0, 0.0), (wire.FAR_S / 2, 0.0), (wire.FAR_S, wire.FAR_S)])
def test_short_round_trips_do_not_count_for_windows(round_trip_s, counted_s):
    pace = replace(MEASURED, round_trip_s=round_trip_s).pace(PREDICTED, LAYOUT)
    assert (pace.round_trip_s, pace.fastest) == (counted_s, 25e6)


def test_windows_depend_on_the_rates_of_workers_and_on_how_long_other_servers_have_a_slice():
    nodes = JobNodes.of(NAMES, set(NAMES[1:]), {name: rank for rank, name in enumerate(NAMES)})

    def pace(server_rate):
        rates = np.array([server_rate, *RATES[0][1:]])
        estimate = Estimate(rates, rates, np.array([rates, rates]))
        return replace(MEASURED, nodes=nodes, estimate=estimate).pace(PREDICTED, LAYOUT)

    assert pace(25e6).uplinks == [0.0, *RATES[0][1:]]
    assert (pace(25e6).fastest, pace(25e6).usual) == (20e6, pace(50e6).usual)
    in_and_out_bytes = 2 * 3 * LAYOUT.common_bytes
    half_way = pace(2 * in_and_out_bytes / PREDICTED.predicted_s)  # a slice is away for half of the exchange
    np.testing.assert_allclose(half_way.usual, LAYOUT.model_bytes / 2, rtol=1e-6)
    np.testing.assert_allclose(pace(1e3).usual, LAYOUT.model_bytes)


def test_a_slice_is_away_for_as_long_as_its_capped_pairs_need():
    def capped_s(*rates, plan=PREDICTED):
        pairs = dict(zip([(0, 3), (3, 0)], rates, strict=False))
        estimate = replace(MEASURED.estimate, pairs=pairs)
        return replace(MEASURED, estimate=estimate).pace(plan, LAYOUT).capped_s * 1e6 / LAYOUT.common_bytes

    assert capped_s() == 0
    assert capped_s(1e6) == pytest.approx(2)  # a push to one end shares the pair with an answer of the other
    assert capped_s(1e6, 2e6) == pytest.approx(2 + 1)
    probes_alone = replace(PREDICTED, shares_bytes=(100, PREDICTED.shares_bytes[1], PREDICTED.shares_bytes[2], 100))
    assert capped_s(1e6, plan=probes_alone) == 0


def test_configured_rates_are_told_for_the_jobs_nodes():
    knowledge, rates = NetworkKnowledge(JOB, CapacityEstimator), dict(zip(NAMES, RATES[0].tolist(), strict=True))
    knowledge.note_configured(wire.Configured(rates, rates, [("n0", "n3", 1e6)]))
    told = knowledge.now.configured
    assert told.capacities.pairs == {(0, 3): 1e6}
    assert told.for_bound.up.tolist() == RATES[0].tolist()


def test_the_exchange_alone_took_what_came_after_all_had_computed_or_all_of_it():
    assert FinishedIteration(NONE, 3.0).exchange_s == 3.0
    assert FinishedIteration(NONE, 3.0, exposed_s=1.0).exchange_s == 1.0


def test_nodes_have_their_roles_and_their_servers_ranks():
    nodes = JobNodes.of(["a", "b", "c"], {"a", "b"}, {"c": 0, "b": 1})
    assert [(node.name, node.is_worker, node.is_server) for node in nodes.nodes] == [
        ("a", True, False), ("b", True, True), ("c", False, True),
    ]  # fmt: skip
    assert nodes.rank_of_node == {1: 1, 2: 0}
    assert (nodes.names, nodes.are_all_workers, JOB.are_all_workers) == (["a", "b", "c"], False, True)


def test_cores_are_known_by_values_whatever_bytes_these_have():
    knowledge = NetworkKnowledge(JOB, CapacityEstimator)
    knowledge.learn(seen(work=Work(*np.ones((3, len(JOB.nodes))))), EQUAL, shows_servers=False)
    whole = knowledge.now.cores
    half = Precisions.all_in("float16", JOB.nodes)
    knowledge.note_precisions(half, LAYOUT.tensors)
    part = bytes_in(LAYOUT.tensors, "float16") / MODEL_BYTES
    told = knowledge.now.cores
    np.testing.assert_allclose(told.of_shares(part * EQUAL.held_shares), whole.of_shares(EQUAL.held_shares))
