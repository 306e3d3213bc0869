"""Estimators against traffic whose rates are known."""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from nalb.measurement.estimators import CapacityEstimator, PaperEstimator, sustained_rates
from nalb.measurement.samples import samples_of
from nalb.measurement.traffic import Traffic


class LinkSample(NamedTuple):
    """A message, as SAMPLE has it."""

    source: int
    target: int
    size_bytes: int
    start_s: float
    end_s: float
    is_push: bool = True


def traffic_of(samples):
    return Traffic(samples_of(samples))


def stream(source, target, rate, start_s, span_s, size=50_000, is_push=True):
    """Messages of one connection that flows at `rate` bytes/s from start_s on."""
    each_s = size / rate
    return [
        LinkSample(source, target, size, start_s + k * each_s, start_s + (k + 1) * each_s, is_push)
        for k in range(int(span_s / each_s))
    ]


def test_the_paper_adds_up_a_nodes_link_means():
    paper = PaperEstimator(3)
    paper.observe(
        traffic_of(
            stream(0, 1, 4e6, 0, 1) + stream(0, 2, 2e6, 0, 1) + stream(1, 0, 1e6, 0, 1) + stream(2, 1, 1e6, 0, 1)
        )
    )
    estimate = paper.estimate()
    assert estimate.up == pytest.approx([6e6, 1e6, 1e6])
    assert estimate.down == pytest.approx([1e6, 5e6, 2e6])


def test_pushes_and_answers_of_a_pair_are_two_connections():
    paper = PaperEstimator(2)
    paper.observe(traffic_of(stream(0, 1, 3e6, 0, 1) + stream(0, 1, 2e6, 0, 1, is_push=False)))
    assert paper.estimate().up[0] == pytest.approx(5e6)


def test_a_limit_that_is_carried_again_stays_one(monkeypatch):
    """Whether or not it shows that pushes waited for it; only a node that carries more is not known to be limited."""
    waited = np.array([[False, False, False], [False, False, True]])
    monkeypatch.setattr("nalb.measurement.estimators._waited_for", lambda *_, **__: waited)
    estimator = CapacityEstimator(3)

    def carry(rate):
        own = stream(2, 0, 5e6, 0, 1) + stream(2, 1, 5e6, 0, 1)
        estimator.observe(traffic_of(own + stream(0, 2, rate / 2, 0, 1) + stream(1, 2, rate / 2, 0, 1)))
        return estimator.estimate().down[2]

    assert carry(6e6) == pytest.approx(6e6)
    waited = np.zeros((2, 3), dtype=np.bool_)
    assert carry(6e6) == pytest.approx(6e6)
    assert carry(9e6) == pytest.approx(10e6)  # as its other direction


def test_a_node_never_seen_is_unknown():
    for estimator in (PaperEstimator(3), CapacityEstimator(3)):
        assert not estimator.estimate().complete
        estimator.observe(traffic_of(stream(0, 1, 4e6, 0, 1)))
        estimate = estimator.estimate()
        assert np.isnan(estimate.up[2])
        assert not estimate.complete
        assert estimate.up[0] == pytest.approx(4e6, rel=0.02)


def test_capacity_is_the_sum_of_what_overlaps_not_of_what_follows():
    """Two links at 3e6 each at once are 6e6; one after the other they are 3e6."""
    together, after = CapacityEstimator(3), CapacityEstimator(3)
    together.observe(traffic_of(stream(0, 1, 3e6, 0, 2) + stream(0, 2, 3e6, 0, 2)))
    after.observe(traffic_of(stream(0, 1, 3e6, 0, 2) + stream(0, 2, 3e6, 2, 2)))
    assert together.estimate().up[0] == pytest.approx(6e6, rel=0.03)
    assert after.estimate().up[0] == pytest.approx(3e6, rel=0.03)


def test_a_node_that_idles_most_of_the_time_reads_its_busy_rate():
    capacity = CapacityEstimator(2)
    capacity.observe(traffic_of(stream(0, 1, 5e6, 0, 1) + stream(1, 0, 1e6, 0, 4)))
    assert capacity.estimate().up[0] == pytest.approx(5e6, rel=0.05)


def test_a_short_burst_is_not_a_capacity():
    capacity = CapacityEstimator(2)
    burst = [LinkSample(0, 1, 50_000, 1.0 + k * 1e-4, 1.0 + (k + 1) * 1e-4) for k in range(4)]
    capacity.observe(traffic_of(stream(0, 1, 1e6, 0, 1) + burst + stream(0, 1, 1e6, 1.2, 1.5)))
    assert capacity.estimate().up[0] < 2e6


def test_what_a_stalled_machine_catches_up_with_is_not_a_capacity():
    """Of 20 s, 0.4 s stand still; what has gathered meanwhile arrives within the next 0.4 s, at twice the link's rate."""
    smooth = stream(0, 1, 4e6, 0, 20, size=20_000)
    late = [
        LinkSample(s.source, s.target, s.size_bytes, *(8.4 + (t - 8) / 2 if 8 < t < 8.8 else t for t in s[3:5]))
        for s in smooth
    ]
    estimator = CapacityEstimator(2)
    estimator.observe(traffic_of(late))
    assert estimator.estimate().up[0] == pytest.approx(4e6, rel=0.1)


def test_in_step_a_higher_reading_raises_the_estimate_and_a_lower_one_does_not():
    capacity = CapacityEstimator(2)
    capacity.observe(traffic_of(stream(0, 1, 5e6, 0, 1)))
    capacity.observe(traffic_of(stream(0, 1, 2e6, 10, 5)), free=False)
    assert capacity.estimate().up[0] == pytest.approx(5e6, rel=0.05)
    for k in range(6):
        capacity.observe(traffic_of(stream(0, 1, 10e6, 100 + k, 1)), free=False)
    assert capacity.estimate().up[0] == pytest.approx(10e6, rel=0.05)
    capacity.observe(traffic_of(stream(0, 1, 2e6, 200, 5)), free=False, anew=True)
    assert capacity.estimate().up[0] == pytest.approx(2e6, rel=0.05)
    capacity.forget()
    assert not capacity.estimate().complete


def test_a_free_iteration_lowers_what_it_proves_and_nothing_else():
    """Node 0 receives 3e6 where it received 12e6; node 1 sends less, to node 0 alone, and keeps its estimate."""
    capacity, slower = CapacityEstimator(4), all_to_all(up=[18e6] * 4, down=[3e6, 50e6, 50e6, 50e6])
    capacity.observe(traffic_of(all_to_all(up=[18e6] * 4, down=[12e6, 50e6, 50e6, 50e6])))
    capacity.observe(traffic_of([sample for sample in slower if sample.source != 1 or sample.target == 0]))
    estimate = capacity.estimate()
    assert estimate.down[0] == pytest.approx(3e6, rel=0.05)
    assert estimate.up[1] >= 18e6


def test_what_is_measured_anew_counts_and_who_was_not_heard_stays():
    capacity = CapacityEstimator(3)
    capacity.observe(traffic_of(all_to_all(up=[10e6] * 3, down=[10e6] * 3)))
    capacity.observe(traffic_of(stream(0, 1, 2e6, 0, 5) + stream(1, 0, 3e6, 0, 5)), free=False, anew=True)
    estimate = capacity.estimate()
    assert estimate.up == pytest.approx([3e6, 3e6, 10e6], rel=0.05)  # in step, the better direction is what is known
    assert estimate.down == pytest.approx([3e6, 3e6, 10e6], rel=0.05)


def test_messages_that_travel_alone_show_that_a_node_has_outgrown_its_estimate():
    """A tenth of the time at ten times the rate: 0.2 s windows see the mean, single messages the rate."""
    capacity = CapacityEstimator(4)
    traffic = all_to_all(up=[6e6] * 4, down=[1e6, 50e6, 50e6, 50e6])
    capacity.observe(traffic_of(traffic))
    capacity.observe(traffic_of(traffic), free=False)
    assert not capacity.outgrown.any()
    alone = [LinkSample(1, 0, 50_000, t, t + 0.005) for t in np.arange(10, 12, 0.05)]
    capacity.observe(traffic_of(alone), free=False)
    assert np.argwhere(capacity.outgrown).tolist() == [[1, 0]]  # down to node 0, which was waited for at 1e6
    assert capacity.estimate().down[0] == pytest.approx(1e6, rel=0.05)
    capacity.forget()
    assert not capacity.outgrown.any()


def test_messages_that_travel_alone_raise_a_lower_bound():
    capacity = CapacityEstimator(2)
    capacity.observe(traffic_of(stream(0, 1, 1e6, 0, 2)))
    for _ in range(8):
        capacity.observe(traffic_of([LinkSample(0, 1, 50_000, t, t + 0.005) for t in np.arange(10, 12, 0.05)]), False)
    assert not capacity.outgrown.any()
    assert capacity.estimate().up[0] == pytest.approx(0.85 * 50_000 / 0.0055, rel=0.05)


def all_to_all(up, down, pairs=None, span_s=3.0):
    """Pushes of equal shares that all begin at once, flows by max-min fairness, until the first is through."""
    num_nodes = len(up)
    flows = [(i, j) for i in range(num_nodes) for j in range(num_nodes) if i != j]
    limits = [({f for f in flows if f[0] == i}, up[i]) for i in range(num_nodes)]
    limits += [({f for f in flows if f[1] == j}, down[j]) for j in range(num_nodes)]
    limits += [({pair}, cap) for pair, cap in (pairs or {}).items()]
    rate: dict[tuple[int, int], float] = {}
    while len(rate) < len(flows):
        level = {
            k: (cap - sum(rate.get(f, 0) for f in group)) / len(group - rate.keys())
            for k, (group, cap) in enumerate(limits)
            if group - rate.keys()
        }
        tightest = min(level, key=lambda k: level[k])
        rate.update(dict.fromkeys(limits[tightest][0] - rate.keys(), level[tightest]))
    return [sample for (i, j), flow in rate.items() for sample in stream(i, j, flow, 0, span_s)]


FAST = all_to_all(up=[18e6] * 4, down=[18e6] * 4)


def then(before, after):
    """One iteration: the second traffic follows the first."""
    begin_s = max(sample.end_s for sample in before)
    return before + [s._replace(start_s=begin_s + s.start_s, end_s=begin_s + s.end_s) for s in after]


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize("follow", [False, True])
def test_of_an_iteration_within_which_a_node_became_slow_the_end_counts(in_step, follow):
    """Node 0 receives 18e6, then 3e6. The others are through by then, or, in step with it, pause between their messages."""
    slow = [sample for j in (1, 2, 3) for sample in stream(j, 0, 1e6, 0, 3)]
    if in_step:
        pairs = [(i, j) for i in range(4) for j in (1, 2, 3) if i != j]
        slow += [LinkSample(i, j, 50_000, t, t + 50_000 / 18e6) for i, j in pairs for t in np.arange(0, 3, 0.05)]
    capacity = CapacityEstimator(4)
    capacity.observe(traffic_of(FAST))
    capacity.observe(traffic_of(then(FAST, slow)), not in_step, True, follow)
    estimate = capacity.estimate()
    assert capacity.followed == follow
    assert estimate.down[0] == pytest.approx(3e6 if follow else 18e6, rel=0.05)
    assert min(*estimate.up[1:], *estimate.down[1:]) > 12e6


def test_an_iteration_that_is_as_slow_from_the_beginning_is_read_whole():
    """Only what has to do with the slow node is left at the end; what the others carried before is their rate."""
    slow = all_to_all(up=[18e6] * 4, down=[3e6, 18e6, 18e6, 18e6])
    rest = [sample for j in (1, 2, 3) for sample in stream(j, 0, 1e6, 0, 3)]
    capacity = CapacityEstimator(4)
    capacity.observe(traffic_of(then(slow, rest)), True, True, follow=True)
    assert not capacity.followed
    assert capacity.estimate().up == pytest.approx([18e6] * 4, rel=0.05)


def test_the_end_of_an_iteration_that_one_pair_holds_up_is_not_taken_for_a_slow_node():
    capacity = CapacityEstimator(4)
    capacity.observe(traffic_of(then(FAST, stream(1, 0, 1e6, 0, 3))), True, True, follow=True)
    assert not capacity.followed
    assert capacity.estimate().down[0] == pytest.approx(18e6, rel=0.05)


def test_what_travelled_since_a_moment_has_the_rest_of_the_bytes():
    late = traffic_of([LinkSample(0, 1, 1000, 0.0, 1.0), LinkSample(1, 0, 3000, 1.0, 4.0)]).since(2.0)
    assert late.size_bytes.tolist() == [2000]
    assert (late.first_s, late.last_s) == (2.0, 4.0)


def test_a_direction_that_nothing_waited_for_is_a_lower_bound():
    """Node 0 can receive 50 MB/s, but its peers send it 3 x 2: its up, which was waited for, stands in."""
    capacity = CapacityEstimator(4)
    capacity.observe(traffic_of(all_to_all(up=[18e6, 6e6, 6e6, 6e6], down=[50e6, 50e6, 50e6, 50e6])))
    estimate = capacity.estimate()
    assert estimate.up == pytest.approx([18e6, 6e6, 6e6, 6e6], rel=0.05)
    assert estimate.down[0] == pytest.approx(18e6, rel=0.05)


def test_a_direction_that_pushes_waited_for_is_a_limit():
    capacity = CapacityEstimator(4)
    capacity.observe(traffic_of(all_to_all(up=[18e6, 18e6, 18e6, 18e6], down=[3e6, 50e6, 50e6, 50e6])))
    estimate = capacity.estimate()
    assert estimate.down[0] == pytest.approx(3e6, rel=0.05)
    assert estimate.up[0] == pytest.approx(18e6, rel=0.05)


@pytest.mark.parametrize(("slow_push", "up"), [(6e6, 3e6), (1.5e6, 7.5e6)])
def test_a_server_that_never_pushes_is_limited_where_its_sums_wait(slow_push, up):
    """It answers two workers far away at 1.5e6 each: its limit, or since one pushes no faster. Then its down stands in."""
    pushes = stream(0, 2, 6e6, 0, 2) + stream(1, 2, slow_push, 0, 12e6 / slow_push)
    answers = [s for worker in (0, 1) for s in stream(2, worker, 1.5e6, 0.5, 8, is_push=False)]
    capacity = CapacityEstimator(3)
    capacity.observe(traffic_of(pushes + answers))
    assert capacity.estimate().up[2] == pytest.approx(up, rel=0.05)


def test_the_one_pair_that_is_busy_while_its_ends_have_room_is_capped():
    capacity = CapacityEstimator(3)
    capacity.observe(traffic_of(all_to_all(up=[10e6] * 3, down=[10e6] * 3, pairs={(0, 2): 2e6})))
    late = [LinkSample(i, j, 50_000, t, t + 0.005) for i in range(3) for j in range(3) if i != j for t in range(4)]
    assert not capacity.find_capped_pair(traffic_of(late))
    assert capacity.find_capped_pair(traffic_of(late + stream(0, 2, 2e6, 0, 4)))
    assert capacity.estimate().pairs[0, 2] == pytest.approx(2e6, rel=0.1)
    assert not capacity.find_capped_pair(traffic_of(late + stream(0, 2, 2e6, 0, 4)))  # known already
    capacity.observe(traffic_of(stream(0, 2, 4e6, 0, 4)), free=False)
    assert not capacity.estimate().pairs  # it has carried more


@pytest.mark.parametrize(("each_s", "is_capped"), [(0.025, True), (0.012, False)])
def test_a_pair_is_capped_no_more_once_its_messages_go_much_faster_with_a_window(each_s, is_capped):
    """At 2e6 and at 4.2e6 bytes/s, one every 0.05 s: all in all it carries no more than its cap."""
    capacity = CapacityEstimator(3)
    capacity.observe(traffic_of(all_to_all(up=[10e6] * 3, down=[10e6] * 3, pairs={(0, 2): 2e6})))
    late = [LinkSample(i, j, 50_000, t, t + 0.005) for i in range(3) for j in range(3) if i != j for t in range(4)]
    assert capacity.find_capped_pair(traffic_of(late + stream(0, 2, 2e6, 0, 4)))
    capacity.observe(traffic_of([LinkSample(0, 2, 50_000, t, t + each_s) for t in np.arange(10, 12, 0.05)]), free=False)
    assert ((0, 2) in capacity.estimate().pairs) == is_capped


def test_a_pair_that_was_faster_in_the_free_iteration_before_is_not_capped():
    capacity = CapacityEstimator(3)
    capacity.observe(traffic_of(all_to_all(up=[10e6] * 3, down=[10e6] * 3)))  # 5e6 each
    late = [LinkSample(i, j, 50_000, t, t + 0.005) for i in range(3) for j in range(3) if i != j for t in range(4)]
    assert not capacity.find_capped_pair(traffic_of(late + stream(0, 2, 2e6, 0, 4)))
    assert not capacity.estimate().pairs


def test_a_node_that_has_become_slow_is_not_taken_for_capped_pairs():
    capacity = CapacityEstimator(3)
    capacity.observe(traffic_of(all_to_all(up=[10e6] * 3, down=[10e6] * 3)))
    assert not capacity.find_capped_pair(
        traffic_of(stream(0, 1, 1e6, 0, 4) + stream(0, 2, 1e6, 0, 4) + stream(1, 2, 9e6, 0, 0.2))
    )


def test_sustained_rate_of_a_span_shorter_than_the_window_is_the_mean():
    traffic = traffic_of([LinkSample(0, 1, 1000, k * 0.01, (k + 1) * 0.01) for k in range(3)])
    up, down = sustained_rates(traffic, 2)
    assert up == pytest.approx([3000 / 0.03, math.nan], nan_ok=True)
    assert down == pytest.approx([math.nan, 3000 / 0.03], nan_ok=True)


def test_the_same_samples_give_the_same_estimate():
    samples = stream(0, 1, 3e6, 0, 2) + stream(1, 2, 2e6, 0.3, 2) + stream(2, 0, 1e6, 0.1, 2)
    first, second = CapacityEstimator(3), CapacityEstimator(3)
    first.observe(traffic_of(samples))
    second.observe(traffic_of(list(samples)))
    assert (first.estimate().up == second.estimate().up).all()


def starved(shift_s):
    """What the server of a node with 0.15 cores and 160 Mbit/s read of equal shares, on uneven4-both (recorded)."""
    rows = json.loads((Path(__file__).parent / "starved_node.json").read_text())
    return [LinkSample(i, 3, size, shift_s + a * 1e-6, shift_s + b * 1e-6) for i, size, a, b in rows]


def test_a_process_that_stood_still_does_not_read_as_a_fast_link():
    """A fifth of its messages seem to come at 1 Gbit/s and more, forecast and message read in one go."""
    samples = starved(0.0)
    elapsed_s = np.array([s.end_s - s.start_s for s in samples])
    full = np.array([s.size_bytes > 50_000 for s in samples])
    assert np.quantile((56_584 / elapsed_s)[full], 0.8) > 125e6
    capacity = CapacityEstimator(4)
    for iteration in range(6):
        capacity.observe(traffic_of(starved(shift_s=10.0 * iteration)), free=iteration == 0)
        assert not capacity.outgrown.any()
    assert capacity.estimate().down[3] < 160e6 / 8


def test_messages_that_were_awaited_took_what_they_seem_to_have():
    """Read as they come, one after another or several connections at once, also behind a pause."""
    samples = stream(0, 1, 5e6, 0, 1) + stream(2, 1, 3e6, 0.5, 1) + stream(0, 1, 20e6, 3, 0.2)
    assert traffic_of(samples).longest_s == pytest.approx([s.end_s - s.start_s for s in samples])
