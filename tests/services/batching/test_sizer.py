"""Batch sizes at the coordinator: who gets which sizes when, driven by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbb_figures import rapid_tunings
from nalb.batching.lbb import FINE_ONLY, RAPID
from nalb.errors import InputError
from nalb.events import BatchEvent
from nalb.failures import Cause
from nalb.protocol import wire
from nalb.services.batching import messages as m
from nalb.services.batching import sizer
from nalb.services.batching.sizer import NEW_SIZE, ON_THEIR_WAY, WARM_UP, BatchSizer
from nalb.services.composition import new_coordinator
from nalb.settings import from_environment
from tests.failures import who

ENVIRONMENT = {
    "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "NALB_SCHEME": "stock",
    "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2", "NALB_STOCK": "1", "NALB_BATCHING": "lb-bsp",
}  # fmt: skip


def computed(iteration, size, compute_s=1.0):
    return m.Computed(iteration, size, compute_s, 0.5, 0.2, 1.0, 0.0)


def joined(scheme, sizes, **limits):
    manager = BatchSizer(scheme, len(sizes), **limits)
    for rank, size in enumerate(sizes):
        assert not manager.outbox
        manager.join(rank, m.JoinBatching(size, None))
    return manager


def iterate(manager, iteration, sizes, seconds_per_sample):
    for rank, (size, pace) in enumerate(zip(sizes, seconds_per_sample, strict=True)):
        manager.computed(rank, computed(iteration, size, size * pace))


def warm(manager, sizes):
    """The iterations that no controller sees, at paces that would mislead it."""
    for iteration in range(WARM_UP):
        iterate(manager, iteration, sizes, range(1, 1 + len(sizes)))
    assert {tuple(message.sizes) for message in manager.outbox} == {tuple(sizes)}
    manager.outbox.clear()
    manager.events.clear()


def test_lb_bsp_answers_every_iteration_with_sizes_by_speed():
    manager = joined("lb-bsp", (30, 30))
    assert manager.outbox == [m.BatchSizes(0, 0, [30, 30])]
    warm(manager, (30, 30))
    iterate(manager, WARM_UP, (30, 30), (0.001, 0.002))
    assert manager.outbox == [m.BatchSizes(WARM_UP + 1, WARM_UP + 1, [40, 20])]
    assert manager.events[0].next_sizes == [40, 20]


def test_known_power_gives_the_first_sizes_and_all_must_know_theirs():
    manager = BatchSizer("static", 2)
    manager.join(0, m.JoinBatching(30, None, power=2.0))
    manager.join(1, m.JoinBatching(30, None, power=4.0))
    assert manager.outbox[0].sizes == [20, 40]
    manager = BatchSizer("static", 2)
    manager.join(0, m.JoinBatching(30, None, power=2.0))
    with pytest.raises(InputError, match="rank 1 joins without its power"):
        manager.join(1, m.JoinBatching(30, None))


def test_the_first_two_iterations_at_a_larger_size_are_not_judged():
    """They contain MXNet's set-up for it: new sizes again would follow, without end."""
    manager = joined("lb-bsp", (30, 30))
    warm(manager, (30, 30))
    iterate(manager, WARM_UP, (30, 30), (0.001, 0.002))
    for iteration, paces in enumerate([(0.009, 0.002), (0.003, 0.002), (0.001, 0.002)], start=WARM_UP + 1):
        iterate(manager, iteration, (40, 20), paces)
    assert [tuple(message.sizes) for message in manager.outbox] == [(40, 20)] * 4
    assert [event.reason for event in manager.events][1:3] == [NEW_SIZE] * 2
    iterate(manager, WARM_UP + 4, (40, 20), (0.001, 0.001))
    assert manager.outbox[-1].sizes == [30, 30]
    iterate(manager, WARM_UP + 5, (30, 30), (0.001, 0.002))
    assert manager.events[-1].reason != NEW_SIZE


def test_nobody_is_told_before_all_have_reported():
    manager = joined("lb-bsp", (30, 30))
    manager.computed(1, computed(0, 30))
    assert len(manager.outbox) == 1


def test_a_decision_beside_the_computing_holds_an_iteration_later_and_is_not_taken_twice():
    """LBB's rapid tuning: judged again by the old sizes it would fall back to fine tuning from them."""
    manager = joined("lbb", (30, 30))
    assert manager.outbox == [m.BatchSizes(0, 1, [30, 30])]
    warm(manager, (30, 30))
    for iteration in (WARM_UP, WARM_UP + 1):
        iterate(manager, iteration, (30, 30), (0.001, 0.002))
    assert manager.outbox == [m.BatchSizes(WARM_UP + 2 + i, WARM_UP + 2 + i, [40, 20]) for i in (0, 1)]
    assert [event.reason for event in manager.events] == [RAPID, ON_THEIR_WAY]
    assert rapid_tunings(manager.events) == [True, False]


@pytest.mark.parametrize(("scheme", "until"), [("bsp", 0), ("ssp", 5), ("asp", wire.FOREVER)])
def test_baselines_keep_their_sizes_and_bound_the_lead(scheme, until):
    manager = joined(scheme, (30, 10))
    assert manager.outbox == [m.BatchSizes(0, until, [30, 10])]
    iterate(manager, 0, (30, 10), (0.001, 0.1))
    assert [message.sizes for message in manager.outbox] == [[30, 10]] * (1 if scheme == "asp" else 2)
    assert manager.outbox[-1].until == (wire.FOREVER if scheme == "asp" else until + 1)


def test_reports_far_ahead_of_the_slowest_are_not_kept(monkeypatch):
    monkeypatch.setattr(sizer, "KEPT", 2)
    manager = joined("asp", (30, 10))
    for rank, size in enumerate((30, 10)):
        for iteration in range(9):
            manager.computed(rank, computed(iteration, size))
            assert len(manager.reports) <= 2
    assert not manager.reports
    iterate(manager, 9, (30, 10), (0.001, 0.1))
    assert [event.iteration for event in manager.events] == [0, 1, 9]


@given(
    st.sampled_from(["off", "static", "dynamic", "lb-bsp", "lb-bsp-gpu", "lbb"]),
    st.lists(st.integers(1, 60), min_size=2, max_size=5),
    st.data(),
)
def test_the_total_is_kept_and_all_switch_in_the_same_iteration(scheme, start, data):
    manager = joined(scheme, start)
    sizes_of = {}
    for iteration in range(12):
        for message in manager.outbox:
            sizes_of.update(dict.fromkeys(range(message.iteration, message.until + 1), message.sizes))
        manager.outbox.clear()
        paces = data.draw(st.lists(st.floats(1e-4, 1e-2), min_size=len(start), max_size=len(start)))
        iterate(manager, iteration, sizes_of[iteration], paces)
        assert sum(sizes_of[iteration]) == sum(start)
    assert len(manager.events) == 12


def test_the_jobs_total_and_limits_override_what_the_workers_begin_with():
    assert joined("off", (8, 8, 8), total=30).outbox[0].sizes == [10, 10, 10]
    assert joined("off", (8, 8, 8), total=30, most=(4, 20, 20)).outbox[0].sizes == [4, 13, 13]
    with pytest.raises(InputError, match="does not fit"):
        joined("off", (8, 8), total=30, most=(10, 10))


def test_reports_out_of_turn_and_impossible_ones_are_refused():
    manager = joined("lb-bsp", (30, 30))
    with pytest.raises(InputError, match="batch 1 while 0 is due"):
        manager.computed(0, computed(1, 30))
    manager.computed(0, computed(0, 31))
    manager.computed(1, computed(0, 30))  # 61 samples: the sizes were not these; no controller may learn from it
    assert manager.events[0].next_sizes == [30, 30]
    with pytest.raises(InputError, match="twice"):
        manager.join(0, m.JoinBatching(3, None))


def test_a_worker_that_leaves_with_fewer_steps_is_noticed():
    manager = joined("dynamic", (30, 30))
    manager.computed(0, computed(0, 30))
    assert manager.leave(1) is not None
    other = joined("dynamic", (30, 30))
    assert other.leave(1) is None
    assert other.computed(0, computed(0, 30)) == (1, "left after 0 steps, another made more: all must make as many")


class Job:
    """Two workers of MXNet alone, and the coordinator beside them."""

    def __init__(self, **environment):
        self.state = new_coordinator(from_environment({**ENVIRONMENT, **environment}, "host"), 0.0)
        for rank in (0, 1):
            self.say(rank, wire.Hello(wire.VERSION, "worker", f"n{rank}", rank, 100))

    def say(self, rank, message, now_s=0.0):
        self.state.receive(f"w{rank}".encode(), message, now_s)

    def sent(self, kind):
        return [(peer.decode(), message) for peer, message in self.state.outbox if isinstance(message, kind)]


def test_without_plans_workers_alone_make_the_job():
    job = Job()
    assert [peer for peer, _ in job.sent(wire.Welcome)] == ["w0", "w1"]
    for rank in (0, 1):
        job.say(rank, m.JoinBatching(16, None))
    for iteration in range(WARM_UP + 1):
        for rank in (0, 1):
            job.say(rank, computed(iteration, 16, 1.0 + rank))
    assert {message.sizes[0] for _, message in job.sent(m.BatchSizes)} == {16, 21}
    assert [e.workers for e in job.state.events if isinstance(e, BatchEvent)] == [["n0", "n1"]] * (WARM_UP + 1)
    for rank in (0, 1):
        job.say(rank, wire.Goodbye())
    assert len(job.sent(wire.Farewell)) == 2
    assert job.state.verdict is None


@pytest.mark.parametrize("leaves_first", [True, False])
def test_who_leaves_too_early_is_named_whoever_is_heard_first(leaves_first):
    job = Job()
    for rank in (0, 1):
        job.say(rank, m.JoinBatching(16, None))
    said = [(0, wire.Goodbye()), (1, computed(0, 16))]
    for rank, message in said if leaves_first else reversed(said):
        job.say(rank, message)
    assert (job.state.verdict.cause, who(job.state.verdict)) == (Cause.UNEQUAL, ("worker", "n0"))


def test_a_job_whose_script_does_not_take_part_ends_with_the_reason():
    job = Job()
    job.say(0, wire.Goodbye())
    assert (job.state.verdict.cause, who(job.state.verdict)) == (Cause.BATCHING, ("worker", "n0"))
    job = Job()
    job.say(0, m.JoinBatching(16, None))
    for calls in (0, 1):  # it profiles; then it trains
        assert job.state.verdict is None
        job.say(1, wire.Report(0.0, -1, [], 0, calls), 125.0)
        job.say(0, wire.Report(0.0, -1, [], 0), 125.0)
        job.state.tick(125.0)
    assert (job.state.verdict.cause, who(job.state.verdict)) == (Cause.BATCHING, ("worker", "n1"))
    job = Job(NALB_BATCHING="")
    job.say(0, m.JoinBatching(16, None))
    assert (job.state.verdict.cause, who(job.state.verdict)) == (Cause.BATCHING, ("worker", "n0"))


def test_sizes_that_no_workers_can_have_are_no_workers_fault():
    job = Job(NALB_BATCH_TOTAL="1")
    for rank in (0, 1):
        job.say(rank, m.JoinBatching(16, None))
    assert (job.state.verdict.cause, who(job.state.verdict)) == (Cause.BATCHING, (None, None))


@pytest.mark.parametrize(
    ("name", "value"), [("NALB_BATCHING", "magic"), ("NALB_BATCH_TOTAL", "0"), ("NALB_BATCH_MOST", "4,x"),
                        ("NALB_BATCH_MOST", "4,4,4"), ("NALB_PREDICTOR", "crystal")]
)  # fmt: skip
def test_settings_name_the_variable(name, value):
    with pytest.raises(InputError, match=name):
        from_environment({**ENVIRONMENT, name: value}, "host")


@pytest.mark.parametrize("workers", [2, 64])
def test_lb_bsp_expects_the_last_speed_again_unless_told_otherwise(workers):
    environment = {**ENVIRONMENT, "DMLC_NUM_WORKER": str(workers)}
    assert from_environment(environment, "host").predictor == "memoryless"
    assert from_environment({**environment, "NALB_PREDICTOR": "narx"}, "host").predictor == "narx"


def test_scheme_joint_sizes_the_batches_by_itself():
    with pytest.raises(InputError, match="NALB_BATCHING=lb-bsp: scheme joint"):
        from_environment({**ENVIRONMENT, "NALB_SCHEME": "joint"}, "host")
    without = {name: value for name, value in ENVIRONMENT.items() if name != "NALB_BATCHING"}
    assert from_environment({**without, "NALB_SCHEME": "joint"}, "host").batching == "joint"


def profile(fixed_s, pace_s):
    return [(size, fixed_s + pace_s * size) for size in (4, 8, 16, 32, 64, 128, 256)]


def test_lbb_tunes_a_sudden_50_ms_away_with_the_managers_delays():
    """Straggler effect below 0.3 with the first new sizes, below 0.05 in LBB's window (Yao et al., 3.2.3)."""
    fixed_s, paces = 0.02, (0.001, 0.0012, 0.0015, 0.002)
    manager = BatchSizer("lbb", 4)
    for rank, pace in enumerate(paces):
        manager.join(rank, m.JoinBatching(100, None, profile(fixed_s, pace)))
    sizes_of, effects, ran = {}, [], []
    for iteration in range(90):
        for message in manager.outbox:
            sizes_of.update(dict.fromkeys(range(message.iteration, message.until + 1), message.sizes))
        manager.outbox.clear()
        ran.append(sizes_of[iteration])
        late_s = 0.05 if iteration >= 20 else 0.0
        times = [fixed_s + pace * size for pace, size in zip(paces, ran[-1], strict=True)]
        times[0] += late_s
        effects.append((max(times) - min(times)) / np.mean(times))
        for rank, (size, elapsed_s) in enumerate(zip(ran[-1], times, strict=True)):
            manager.computed(rank, computed(iteration, size, elapsed_s))
    assert max(effects[:20]) < 0.05, "sizes by profiles are even from the start"
    assert effects[20] >= 0.3
    changed = next(iteration for iteration in range(20, 90) if ran[iteration] != ran[19])
    assert changed <= 22
    assert effects[changed] < 0.3
    assert min(effects[changed : changed + 3 * FINE_ONLY]) < 0.05
    assert effects[-1] < 0.05


def test_profiles_of_some_workers_only_are_refused():
    manager = BatchSizer("lbb", 2)
    manager.join(0, m.JoinBatching(8, None, profile(0.01, 0.001)))
    with pytest.raises(InputError, match="rank 1 joins without a profile"):
        manager.join(1, m.JoinBatching(8, None))
