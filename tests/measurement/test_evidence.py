"""What one iteration proves: its laws, on traffic of a few streams. Rates in the tests' names are in MB/s."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nalb.measurement.evidence import Evidence, evidence
from nalb.measurement.rules import RULES
from nalb.measurement.samples import Samples, samples_of
from nalb.measurement.traffic import Traffic
from nalb.planning.sites import Sites

MB = 1e6
FIRST, SECOND, BOTH = (
    (0.0, 1.0),
    (1.0, 2.0),
    (0.0, 2.0),
)  # seconds of an iteration: its first ten cells, the others, all
UP, DOWN = 0, 1


def streams(*rows: tuple[int, int, float, tuple[float, float]], each_s: float = 0.01) -> Samples:
    """Messages without a pause. A row: source, target, MB/s, and from when to when."""
    return samples_of(
        (source, target, round(rate * MB * each_s), at_s, at_s + each_s, True)
        for source, target, rate, (begin_s, end_s) in rows
        for at_s in np.arange(round((end_s - begin_s) / each_s)) * each_s + begin_s
    )


def proven(found: Evidence) -> dict[tuple[int, int], float]:
    """MB/s of the directions whose capacity is proven, by (row, column)."""
    rows, columns = np.nonzero(np.isfinite(found.capacity))
    return {
        (row, column): float(found.capacity[row, column]) / MB
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    }


def close(rates: dict[tuple[int, int], float]) -> object:
    return pytest.approx(rates, rel=0.02)


# Node 3 shows that 1 and 2 get 20 each. Then node 0 sends them 5 each.
FULL_UP = streams((3, 1, 20, FIRST), (3, 2, 20, FIRST), (0, 1, 5, SECOND), (0, 2, 5, SECOND))


def test_an_end_that_is_full_while_the_others_have_room_is_proven():
    found = evidence(Traffic(FULL_UP), 4)
    assert proven(found) == close({(UP, 0): 10})
    assert found.least / MB == pytest.approx(np.array([[10, 0, 0, 40], [0, 20, 20, 0]]), rel=0.01)
    assert not found.caps
    assert not found.has_slowed


def test_an_end_whose_connections_wait_for_a_window_is_not_full():
    """Node 1 is full, and TCP gives node 2 more of it. With a window node 0 sends to node 3 only now and then."""
    now_and_then = [(0, 3, 8, (0.1 * cell, 0.1 * cell + 0.03)) for cell in range(20)]
    traffic = Traffic(streams((0, 1, 1, BOTH), (2, 1, 2, BOTH), *now_and_then))
    assert (UP, 0) not in proven(evidence(traffic, 4))
    assert proven(evidence(traffic, 4, rules=replace(RULES, lasting_part=0.0)))[UP, 0] == pytest.approx(3.4, rel=0.02)


def test_two_full_ends_prove_nothing():
    found = evidence(Traffic(streams((0, 1, 5, BOTH))), 2)
    assert proven(found) == {}
    assert (found.least[UP, 0], found.least[DOWN, 1]) == pytest.approx((5 * MB, 5 * MB))
    assert proven(
        evidence(Traffic(streams((0, 1, 5, BOTH))), 2, rules=replace(RULES, proof_by_one_end=False))
    ) == close({(UP, 0): 5, (DOWN, 1): 5})


def test_what_an_end_carried_before_shows_that_it_has_room():
    """Alone the stream proves nothing. Once node 1 has got 20, only node 0 can be full."""
    before = np.array([[0, 0], [0, 20 * MB]])
    assert proven(evidence(Traffic(streams((0, 1, 5, BOTH))), 2, before)) == close({(UP, 0): 5})


def test_one_cell_is_not_enough_for_a_proof():
    """Node 0 sends in one cell of 0.1 s, and as much in two."""
    for cells, shown in ((1, {}), (2, {(UP, 0): 5})):
        rows = (3, 1, 20, FIRST), (0, 1, 5, (1.5, 1.5 + 0.1 * cells)), (2, 3, 1, (1.9, 2.0))
        before = np.array([[0, 0, 9 * MB, 0], [0] * 4])
        assert proven(evidence(Traffic(streams(*rows)), 4, before, rules=replace(RULES, best_cells=cells))) == close(
            shown
        )


def test_a_connection_that_pauses_is_no_witness():
    rows = [(0, target, 5.0, (1 + 0.1 * k, 1.08 + 0.1 * k)) for k in range(10) for target in (1, 2)]
    pausing = streams((3, 1, 20, FIRST), (3, 2, 20, FIRST), *rows)
    assert proven(evidence(Traffic(pausing), 4)) == {}
    assert proven(evidence(Traffic(pausing), 4, rules=replace(RULES, witness_part=0.75))) == close({(UP, 0): 8})


def test_a_connection_much_slower_than_another_of_its_end_is_held_back_elsewhere():
    """Node 0 is full, but its stream to 1 gets a fifth of that to 2: node 1 alone is proven, which sends 2 nothing."""
    rows = (3, 2, 40, FIRST), (0, 1, 2, SECOND), (0, 2, 10, SECOND)
    assert proven(evidence(Traffic(streams(*rows)), 4)) == close({(UP, 0): 12, (DOWN, 1): 2})
    without = evidence(Traffic(streams(*rows)), 4, rules=replace(RULES, fastest_part=0.0))
    assert proven(without) == close({(UP, 0): 12})


# Node 0 sends 10 and node 1 gets 10 beside what 0 sends to 1, which stays at 1 when they have nothing else.
CAPPED = streams((0, 2, 10, FIRST), (3, 1, 10, FIRST), (0, 1, 1, BOTH))


def test_a_pair_that_is_slow_while_both_ends_have_room_is_capped():
    found = evidence(Traffic(CAPPED), 4)
    assert found.caps == close({(0, 1): MB})
    assert found.carried == close({(0, 1): MB, (0, 2): 10 * MB, (3, 1): 10 * MB})
    assert not found.has_slowed


def test_a_pair_whose_rate_is_not_steady_is_not_capped():
    rows = [(0, 1, 1.0 + 8 * (k == 0), (1 + 0.1 * k, 1.1 + 0.1 * k)) for k in range(10)]
    bursts = Traffic(streams((0, 2, 20, FIRST), (3, 1, 20, FIRST), *rows))
    assert not evidence(bursts, 4).caps
    assert evidence(bursts, 4, rules=replace(RULES, steady_part=0.0)).caps.keys() == {(0, 1)}


def test_a_pair_that_carries_its_known_cap_is_no_witness_of_its_ends():
    caps = {(0, 1): 5 * MB, (0, 2): 5 * MB}
    assert proven(evidence(Traffic(FULL_UP), 4, known_caps=caps)) == {}
    assert proven(evidence(Traffic(FULL_UP), 4, known_caps={pair: 2 * cap for pair, cap in caps.items()})) == close(
        {(UP, 0): 10}
    )


def test_an_end_that_all_its_peers_wait_for_became_slower():
    """Nodes 0, 1 and 2 have sent 20 each, node 3 has got 40. Then each sends 3 gets a part of 9: the fewest ends explain it."""
    before = np.array([[20 * MB] * 3 + [0], [0, 0, 0, 40 * MB]])
    slow = Traffic(streams(*((source, 3, 3.0, BOTH) for source in range(3))))
    found = evidence(slow, 4, before)
    assert proven(found) == close({(DOWN, 3): 9})
    assert not found.caps
    assert proven(evidence(slow, 4, before, rules=replace(RULES, fewest_ends=False))) == {}


def test_of_an_iteration_in_which_an_end_became_slower_the_rest_counts():
    rows = [(source, 3, rate, when) for source in range(3) for rate, when in ((10.0, FIRST), (1.0, SECOND))]
    found = evidence(Traffic(streams(*rows)), 4)
    assert found.has_slowed
    assert proven(found) == close({(DOWN, 3): 3})
    assert found.least[DOWN, 3] == pytest.approx(3 * MB, rel=0.01)


def test_an_end_that_carries_a_small_part_of_all_bytes_may_become_slower_too():
    of_node_3 = [(source, 3, rate, when) for source in range(3) for rate, when in ((10.0, FIRST), (1.0, SECOND))]
    others = [(source, source + 1, 20.0, BOTH) for source in range(4, 12, 2)]
    found = evidence(Traffic(streams(*of_node_3, *others)), 12)
    assert found.has_slowed
    assert proven(found)[DOWN, 3] == pytest.approx(3, rel=0.02)


def test_one_pair_alone_that_became_slower_does_not_make_its_ends_slower():
    found = evidence(Traffic(streams((0, 1, 10, FIRST), (0, 2, 10, FIRST), (3, 1, 10, FIRST), (0, 1, 1, SECOND))), 4)
    assert not found.has_slowed


def in_turns(
    rate: float,
    part: float,
    later_rate: float,
    later_part: float,
    peers: Sequence[int] = (1, 2, 3),
    apart_s: float = 0.02 / 3,
) -> Samples:
    """Node 0 sends to peers for a part of each 0.02 s, as with a window; from the middle on for another part, at another rate.

    apart_s: from when one peer's part begins until the next one's does.
    """
    turns = [(rate, 0.02 * part) if at < 50 else (later_rate, 0.02 * later_part) for at in range(100)]
    rows = [
        (0, peer, mbps, (begin_s, begin_s + took_s))
        for place, peer in enumerate(peers)
        for begin_s, (mbps, took_s) in zip(0.02 * np.arange(100) + apart_s * place, turns, strict=True)
    ]
    return streams(*rows, each_s=0.002)


def test_an_end_that_carries_less_while_more_waits_for_it_became_slower():
    """Connections that wait for a window are no witnesses, so nothing else shows it."""
    waits_more = Traffic(in_turns(8, 0.3, 2, 0.8))
    found = evidence(waits_more, 4)
    assert found.has_slowed
    assert proven(found) == {(UP, 0): pytest.approx(4.8, rel=0.05)}
    without = evidence(waits_more, 4, rules=replace(RULES, queues_show_slower=False))
    assert not without.has_slowed
    assert proven(without) == {}


@pytest.mark.parametrize(
    ("turns", "apart_s"),
    [((8, 0.8, 2, 0.7), 0.02 / 3), ((8, 0.5, 2, 0.5), 0.02 / 3), ((8, 0.2, 1, 0.4), 0.0)],
    ids=["less waits for it", "as much waits for it", "it carries nothing now and then"],
)
def test_an_end_that_carries_less_for_another_reason_has_room(turns, apart_s):
    assert not evidence(Traffic(in_turns(*turns, apart_s=apart_s)), 4).has_slowed


def test_what_waits_for_full_ends_makes_their_peers_no_slower():
    """Nodes 4, 5 and 6 fill the ways into nodes 1, 2 and 3 from the middle on, so that what node 0 sends there takes longer."""
    filling = streams(*((peer + 3, peer, 20, SECOND) for peer in (1, 2, 3)), each_s=0.002)
    found = evidence(Traffic(np.concatenate([in_turns(8, 0.3, 2, 0.8), filling])), 7)
    assert (UP, 0) not in proven(found)
    assert not found.has_slowed


def test_an_end_whose_node_has_full_cores_is_not_slower_by_what_waits_for_it():
    samples = in_turns(8, 0.3, 2, 0.8)
    assert evidence(Traffic(samples, np.array([False, True, True, True])), 4).has_slowed
    assert not evidence(Traffic(samples, np.array([True, False, False, False])), 4).has_slowed


def test_one_pair_alone_that_waits_longer_does_not_make_its_ends_slower():
    samples = np.concatenate([in_turns(8, 0.3, 1, 1.0, [1]), in_turns(8, 0.3, 8, 0.2, [2, 3])])
    assert not evidence(Traffic(samples), 4).has_slowed


def test_an_uplink_is_proven_where_lans_show_that_machines_have_room():
    """Machines 0 and 1 are of one site, 2 and 3 of the other, whose uplink has got 40."""
    lans = [(a, b, 20.0, FIRST) for a, b in ((0, 1), (1, 0), (2, 3), (3, 2))]
    traffic = Traffic(streams(*lans, (0, 2, 5, BOTH), (1, 3, 5, BOTH)))
    before = np.zeros((4, 4))
    before[2 + DOWN, 1] = 40 * MB
    found = evidence(traffic, 4, before, sites=Sites(("a", "a", "b", "b")))
    assert proven(found) == close({(2 + UP, 0): 10})
    assert found.least[2:, 2:].tolist() == [[0, 0], [0, 0]]


def drawn(seed: int) -> tuple[int, Samples]:
    """Random traffic among three to five nodes: streams, some with pauses, each at a rate of its own that may change once.

    In half of it, node 0 gets a tenth from the same moment on, from whoever sends to it.
    """
    rng = np.random.default_rng(seed)
    nodes, slows, rows = int(rng.integers(3, 6)), rng.random() < 0.5, []
    for source in range(nodes):
        for target in range(nodes):
            is_slowed = slows and target == 0
            if source == target or (rng.random() < 0.4 and not is_slowed):
                continue
            at_s, pause_s, rate = rng.uniform(0, 0.5), rng.choice([0.0, 0.1]), rng.uniform(1, 20) * MB
            changed_s, factor = rng.uniform(0, 4), rng.choice([0.1, 1, 5])
            if is_slowed:
                pause_s, changed_s, factor = 0.0, 1.0, 0.1
            while at_s < 2:
                took_s = rng.uniform(0.02, 0.08)
                size = int(rate * (factor if at_s > changed_s else 1) * took_s) + 1
                rows.append((source, target, size, at_s, at_s + took_s, bool(rng.random() < 0.8)))
                at_s += took_s + pause_s * rng.random()
    return nodes, samples_of(rows or [(0, 1, 1000, 0.0, 1.0, True)])


SEEDS = st.integers(0, 2**32 - 1)
LAWS = settings(max_examples=40)


def assert_same(
    found: Evidence, expected: Evidence, nodes: Sequence[int], times: float = 1.0, rel: float = 0.0
) -> None:
    """Whether one is the other with its nodes at these places, and `times` its rates."""
    for name in ("least", "capacity"):
        np.testing.assert_allclose(getattr(found, name)[:, nodes], times * getattr(expected, name), rtol=rel)
    for name in ("carried", "caps"):
        moved = {(nodes[i], nodes[j]): times * rate for (i, j), rate in getattr(expected, name).items()}
        assert getattr(found, name) == pytest.approx(moved, rel=rel, abs=0)
    assert found.has_slowed == expected.has_slowed


@LAWS
@given(SEEDS, st.sampled_from([2, 8]))
def test_more_bytes_are_more_capacity(seed, times):
    nodes, samples = drawn(seed)
    more = samples.copy()
    more["size_bytes"] *= times
    assert_same(evidence(Traffic(more), nodes), evidence(Traffic(samples), nodes), range(nodes), times, 1e-3)


@LAWS
@given(SEEDS, st.sampled_from([0.25, 2.0]))
def test_more_time_is_less_capacity(seed, times):
    nodes, samples = drawn(seed)
    longer = samples.copy()
    for name in ("start_s", "end_s"):
        longer[name] *= times
    assert_same(evidence(Traffic(longer), nodes), evidence(Traffic(samples), nodes), range(nodes), 1 / times, 1e-3)


@LAWS
@given(SEEDS)
def test_nodes_by_other_numbers_have_the_same_evidence(seed):
    nodes, samples = drawn(seed)
    places = np.random.default_rng(seed).permutation(nodes)
    renamed = samples.copy()
    renamed["source"], renamed["target"] = places[samples["source"]], places[samples["target"]]
    assert_same(evidence(Traffic(renamed), nodes), evidence(Traffic(samples), nodes), places.tolist(), rel=1e-6)


@LAWS
@given(SEEDS)
def test_messages_in_another_order_have_the_same_evidence(seed):
    nodes, samples = drawn(seed)
    shuffled = np.random.default_rng(seed).permutation(samples)
    assert_same(evidence(Traffic(shuffled), nodes), evidence(Traffic(samples), nodes), range(nodes), rel=1e-6)


@LAWS
@given(SEEDS)
def test_the_way_back_has_the_same_evidence(seed):
    nodes, samples = drawn(seed)
    back = samples.copy()
    back["source"], back["target"] = samples["target"], samples["source"]
    found, expected = evidence(Traffic(back), nodes), evidence(Traffic(samples), nodes)
    np.testing.assert_allclose(found.least[::-1], expected.least, rtol=1e-6)
    np.testing.assert_allclose(found.capacity[::-1], expected.capacity, rtol=1e-6)
    assert {(i, j) for j, i in found.caps} == expected.caps.keys()


@LAWS
@given(SEEDS)
def test_nodes_without_messages_change_nothing(seed):
    nodes, samples = drawn(seed)
    found = evidence(Traffic(samples), nodes + 2)
    assert (found.least[:, nodes:] == 0).all()
    assert np.isnan(found.capacity[:, nodes:]).all()
    assert_same(found, evidence(Traffic(samples), nodes), range(nodes), rel=1e-6)


@LAWS
@given(SEEDS)
def test_nothing_is_proven_beyond_what_was_carried(seed):
    nodes, samples = drawn(seed)
    found = evidence(Traffic(samples), nodes)
    shown = np.isfinite(found.capacity)
    assert (found.capacity[shown] > 0).all()
    in_all, span_s = np.zeros((2, nodes)), Traffic(samples).span_s
    for row, name in enumerate(("source", "target")):
        np.add.at(in_all[row], samples[name], samples["size_bytes"])
    cell_s = span_s / RULES.cells
    assert (found.least * RULES.best_cells * cell_s <= in_all * (1 + 1e-9)).all()
    assert (found.capacity[shown] * RULES.fewest_cells * cell_s <= in_all[shown] * (1 + 1e-9)).all()
