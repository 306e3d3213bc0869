"""Precisions that follow what is known of links: simulated jobs, whose planner learns and changes."""

from dataclasses import replace

import numpy as np
import pytest

from nalb.events import IterationEvent
from nalb.measurement.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from nalb.measurement.samples import samples_of
from nalb.planning.nodes import Capacities, CoreTimes
from nalb.planning.precisions import STEPS, Precisions
from nalb.schemes import SCHEMES
from nalb.services.exchange.decision import PlanOptions
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.knowledge import FinishedIteration
from nalb.services.exchange.messages import TensorSpec
from nalb.services.exchange.plan_events import explain_iteration
from nalb.services.exchange.planes import AGENTS_WITHOUT_RING
from nalb.services.exchange.planner import new_planner
from nalb.simulation.exchange import exchange

SPECS = [TensorSpec("w", 1_500_000, "float32", 0)]
SLOW = [200.0, 120.0, 160.0, 50.0]  # Mbit/s
FAST = [800.0] * 4


class Job:
    """A job whose iterations are simulated; its exchange begins under computing and ends after it."""

    def __init__(self, rates_mbps, precision="auto", hidden_s=0.0, other_s=0.02):
        self.rates_mbps, self.hidden_s, self.other_s = rates_mbps, hidden_s, other_s
        names = [f"n{i}" for i in range(len(rates_mbps))]
        ranks = {name: rank for rank, name in enumerate(names)}
        job = JobNodes.of(names, set(names), ranks)
        self.planner = new_planner(job, ESTIMATORS[DEFAULT_ESTIMATOR], precision=precision, plane=AGENTS_WITHOUT_RING)
        self.cuts, self.iteration, self.precision = 0, 0, None
        self.cut()

    def cut(self):
        wanted = self.planner.precisions.wanted.precisions.answers
        if wanted != self.precision:
            self.precision, self.cuts = wanted, self.cuts + 1
            self.planner.register(SPECS, 16_000.0, precision=wanted)

    def run(self, iterations, scale=lambda: 1.0, pause_s=0.0):
        """Iterations; returns the exchanges' times."""
        times = []
        for _ in range(iterations):
            self.cut()
            planned = self.planner.plan(self.iteration, self.cuts, PlanOptions(SCHEMES["exact"]))
            rates = np.array(self.rates_mbps) * 125e3 * scale()
            nodes, plan = self.planner.nodes.nodes, planned.message
            sizes, servers = self.planner.layout.sizes_bytes, np.array(plan.server_of_slice)
            done = exchange(nodes, Capacities(rates, rates, {}), sizes, servers, planned.windows or 0)
            took_s = max(done.time_s, self.hidden_s)
            self.planner.judge(
                FinishedIteration(
                    done.samples, took_s, max(took_s - self.hidden_s, 1e-9), iteration_s=took_s + self.other_s + pause_s
                ),
                planned,
            )
            self.planner.consider_precisions()
            self.iteration += 1
            times.append(done.time_s)
        return times

    @property
    def chosen(self):
        return self.planner.chosen.precisions


def whole(job):
    return Precisions.all_in(STEPS[0], job.planner.nodes.nodes)


@pytest.mark.jobs
def test_what_binds_is_lowered_and_the_plan_tells_each_rank():
    job = Job(SLOW)
    whole_s = job.run(3)[-1]
    times = job.run(8)
    assert job.chosen == Precisions.all_in("int8", job.planner.nodes.nodes), "no link has shown that it has room"
    assert times[-1] < 0.3 * whole_s
    assert job.cuts == 2  # one change, however many steps it took
    worth_s = job.planner.chosen.worth_s
    assert worth_s[3] == max(worth_s) > 0
    job.run(100)
    assert job.chosen == Precisions("int8", ("float16", "int8", "float16", "int8"))
    assert job.planner.present.message.pushes == ["float16", "int8", "float16", "int8"]
    assert job.cuts == 2  # the tensors stay as they are cut


def test_equal_fast_links_under_computing_stay_whole():
    job = Job(FAST, hidden_s=0.2, other_s=0.3)
    job.run(40)
    assert job.chosen == whole(job)
    assert job.planner.present.message.pushes == []
    assert job.cuts == 1


@pytest.mark.jobs
def test_precisions_follow_links_that_change_and_go_back():
    job = Job(FAST, hidden_s=0.2, other_s=0.3)
    job.run(5)
    assert job.chosen == whole(job)
    job.rates_mbps = [*FAST[:3], 20.0]
    job.run(12)
    assert job.chosen.answers != "float32"
    assert job.chosen.pushes[3] != "float32"
    job.rates_mbps = FAST
    job.run(60)
    assert job.chosen == whole(job)


def test_a_pause_of_the_script_changes_nothing():
    """An iteration with an evaluation in it takes longer, but not for its exchange."""
    job = Job(SLOW)
    job.run(6)
    chosen, cuts = job.chosen, job.cuts
    for _ in range(3):
        job.run(1, pause_s=60.0)
        job.run(4)
        assert (job.chosen, job.cuts) == (chosen, cuts)


@pytest.mark.jobs
def test_noise_changes_nothing_again_and_again():
    """Rates that vary by 10 % around a network on the edge of a step: hardly a change in 60 iterations."""
    random = np.random.default_rng(0)
    job = Job(SLOW, other_s=1.0, hidden_s=0.1)
    job.run(60, lambda: random.uniform(0.9, 1.1, 4))
    assert job.cuts <= 3


def test_the_bound_of_float32_is_that_of_the_links():
    """Without a network file rates are estimated, and cores are known beside them."""
    job = Job(SLOW, "int8")
    job.run(4)
    planner, event = job.planner, IterationEvent(at_s=1.0, iteration=3, scheme="exact", communication_s={"n0": 1.0})
    known, decision = planner.knowledge.now, planner.present.decision

    def bound_s(cores):
        now = replace(known, cores=cores)
        told = explain_iteration(event, decision, now, planner.layout, samples_of([]), planner.chosen)
        return told.rounded.whole_bound_s

    assert bound_s(CoreTimes(np.full(4, 0.1), np.full(4, 1e-6))) == bound_s(None) > 0


@pytest.mark.parametrize("precision", ["float32", "float16", "int4"])
def test_a_precision_that_was_asked_for_stays(precision):
    job = Job(SLOW, precision)
    job.run(6)
    assert job.chosen == Precisions.all_in(precision, job.planner.nodes.nodes)
    assert job.planner.present.message.pushes == []
    assert job.cuts == 1
