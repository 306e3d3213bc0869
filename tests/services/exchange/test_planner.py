"""Plans over many iterations, on a network that is simulated."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kvstore_patch.keys.plane import PS_LITE
from kvstore_patch.keys.slots import plan_slot_key
from nalb.errors import InputError
from nalb.measurement.capacity import CapacityEstimator
from nalb.planning.distribution import DecisionKind
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import bound_s
from nalb.protocol import wire
from nalb.schemes import AVERAGE, EXACT, SCHEMES, Scheme, equal_by_need, find_scheme
from nalb.services.exchange import messages as m
from nalb.services.exchange.decision import PlanOptions
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.knowledge import FinishedIteration
from nalb.services.exchange.planes import AGENTS_WITHOUT_RING
from nalb.services.exchange.planner import new_planner
from nalb.simulation.exchange import MessageWeight, exchange
from nalb.simulation.job import by_planner
from nalb.workloads import NAMES, load

NODES = [Node("w0", is_server=False), Node("w1", is_server=False), Node("w2", is_server=False)]
NODES += [Node("s0", is_worker=False), Node("s1", is_worker=False)]
FAST, USUAL = 125e6, 12.5e6  # bytes per second
LOW_FROM, LOW_UNTIL, END = 5, 18, 24


def planner_of(plane=PS_LITE):
    nodes = JobNodes.of([node.name for node in NODES], {"w0", "w1", "w2"}, {"s0": 0, "s1": 1})
    planner = new_planner(nodes, CapacityEstimator, plane=plane)
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e4)
    return planner


def network(rate):
    rates = [FAST] * 3 + [USUAL, rate]
    return Capacities.from_lists(rates, rates)


def apart(node, up, down):
    """A network whose node has these rates, the other servers USUAL."""
    rates = np.tile([FAST] * 3 + [USUAL] * 2, (2, 1))
    rates[:, node] = up, down
    return Capacities(*rates, {})


def alike(count, may_leave=True):
    """So many nodes, workers and servers all, and a planner for them: the planner first. may_leave: to MXNet's own routing."""
    nodes = [Node(f"n{i}") for i in range(count)]
    names = [node.name for node in nodes]
    ranks = {name: rank for rank, name in enumerate(names)}
    job = JobNodes.of(names, set(names), ranks)
    plane = PS_LITE if may_leave else replace(PS_LITE, new_loads=None)
    return new_planner(job, CapacityEstimator, plane=plane), nodes


def plan(planner, scheme, iteration=0, schemes=SCHEMES):
    """The planner's next plan."""
    return planner.plan(iteration, 0, PlanOptions(find_scheme(scheme, schemes)))


def window(planner):
    """Bytes of the first worker under way at a time in the planner's last iteration; 0: any."""
    return next(iter(planner.present.windows), 0)


def needs_equal_shares(planner):
    """Whether the next plan of estimates has equal shares by need."""
    return planner.link_knowledge({node.name: 0 for node in planner.nodes.nodes}) is None


def uneven(caps):
    """Six nodes, up and down apart, and these caps of pairs in Mbit/s."""
    up, down = (np.array(mbps) * 125e3 for mbps in ((100, 40, 150, 80, 120, 200), (200, 200, 150, 220, 60, 200)))
    return Capacities(up, down, {pair: mbps * 125e3 for pair, mbps in caps.items()})


def iterate(planner, capacities, nodes=NODES, late_s=0.0, spread_s=0.0):
    """Seconds of the next iteration, over the bound. late_s: what the planner is told in addition.

    spread_s: from the first worker that had computed to the last one.
    """
    planned = plan(planner, "exact")
    sizes_bytes, servers = planner.layout.sizes_bytes, np.array(planned.decision.plan.server_of_slice)
    done = exchange(nodes, capacities, sizes_bytes, servers, planned.windows or 0, MessageWeight())
    planner.judge(FinishedIteration(done.samples, done.time_s + late_s, compute_spread_s=spread_s), planned)
    return done.time_s / bound_s(nodes, planner.layout.model_bytes, capacities)


@pytest.mark.parametrize("low", [6e5, 2.5e4])
def test_a_server_that_is_no_worker_slows_down_and_recovers(low):
    """Equal shares would take 11 and 256 times the bound then; and of the slower one only probes are left, and are read."""
    planner = planner_of()
    over = [iterate(planner, network(low if LOW_FROM <= k < LOW_UNTIL else USUAL)) for k in range(END)]
    assert max(over[1:LOW_FROM]) < 1.1
    assert over[LOW_FROM] > 10
    assert max(over[LOW_FROM + 2 : LOW_UNTIL]) < 3
    assert max(over[LOW_UNTIL + 4 :]) < 1.1


@pytest.mark.parametrize(("up", "down"), [(3.75e6, 15e6), (15e6, 3.75e6)])
def test_of_a_server_that_is_no_worker_either_direction_may_be_the_slower(up, down):
    """It never pushes: that answers wait for its uplink says what that can do. Equal shares take 2.2 times the bound."""
    planner, capacities = planner_of(), apart(4, up, down)
    over = [iterate(planner, capacities) for _ in range(8)]
    assert over[0] > 2
    assert max(over[2:]) < 1.1
    assert planner.knowledge.now.capacities.limit[4] == pytest.approx(3.75e6, rel=0.1)


def test_a_slow_uplink_of_a_server_is_found_though_a_worker_pushes_hardly_faster():
    """All workers' downlinks look as busy as it does. Without it, equal shares would take 1.3 times what links seem to need."""
    planner = planner_of()
    capacities = Capacities.from_lists([8e6, FAST, FAST, 2e7, 9e6], [FAST, FAST, FAST, 2e7, 3e7])
    over = [iterate(planner, capacities) for _ in range(8)]
    assert over[0] > 1.3
    assert max(over[2:]) < 1.15
    assert max(over[4:]) < 1.1


@pytest.mark.parametrize(("up", "down"), [(3e6, 1e6), (1e6, 3e6)])
def test_of_a_worker_that_is_no_server_either_direction_may_be_the_slower(up, down):
    """Nobody pushes to it: that answers wait for its downlink says what that can do. It sets the pace whatever the shares."""
    planner, capacities = planner_of(), apart(0, up, down)
    over = [iterate(planner, capacities) for _ in range(8)]
    assert max(over) < 1.1
    assert planner.knowledge.now.capacities.limit[0] == pytest.approx(1e6, rel=0.1)
    assert not needs_equal_shares(planner)


def test_what_elastic_learnt_of_other_tensors_is_forgotten():
    planner = planner_of()
    for _ in range(3):
        iterate(planner, network(USUAL))
    assert all(planner.knowledge.now.observations[3:])
    planner.register([m.TensorSpec("w", 20_000, "float32", 0)], 1e4)
    assert not any(planner.knowledge.now.observations)


def test_elastic_learns_nothing_from_other_schemes_iterations_with_a_window():
    planner = planner_of()
    free = 0
    for _ in range(6):
        iterate(planner, network(USUAL / 2))
        free += not window(planner)
    assert 0 < free < 6
    assert [len(seen) for seen in planner.knowledge.now.observations] == [0, 0, 0, free, free]
    by_planner("elastic", NODES, planner.layout, network(USUAL / 2), 2, planner, MessageWeight())
    assert [len(seen) for seen in planner.knowledge.now.observations] == [0, 0, 0, free + 2, free + 2]


@pytest.mark.jobs
def test_a_pair_that_is_found_to_be_capped_is_planned_around():
    """Plans around it take what they should: nothing is measured anew."""
    (planner, nodes), capacities = alike(6), uneven({(2, 5): 20})
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e3)
    over = [iterate(planner, capacities, nodes) for _ in range(9)]
    assert (2, 5) in planner.knowledge.now.estimate.pairs
    assert not needs_equal_shares(planner)
    assert max(over[4:]) < 1.15


@pytest.mark.jobs
def test_a_pair_is_found_to_be_capped_though_every_iteration_is_a_surprise():
    """Its cap is so low that plans which do not know it take 1.6 times the bound."""
    planner, nodes = alike(6)
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e3)
    over = [iterate(planner, uneven({(2, 5): 16}), nodes) for _ in range(10)]
    assert list(planner.knowledge.now.estimate.pairs) == [(2, 5)]
    assert max(over[6:]) < 1.15


@pytest.mark.jobs
def test_a_cap_that_is_not_proven_again_is_doubted_where_every_iteration_has_a_window():
    """Delay makes up more than a twentieth of an iteration."""
    planner, nodes = alike(6)
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e3)
    planner.knowledge.note_delay(0.1, is_bbr=False)
    capped, free = uneven({(2, 5): 25}), uneven({})
    for _ in range(6):
        iterate(planner, capped, nodes, late_s=3 * 0.1)
    assert list(planner.knowledge.now.estimate.pairs) == [(2, 5)]
    over = []
    for _ in range(8):
        over.append(iterate(planner, free, nodes, late_s=3 * 0.1))
        assert window(planner)
    assert planner.knowledge.now.estimate.pairs.get((2, 5), np.inf) > 1.05 * capped.pairs[2, 5]
    assert over[-1] < 1.1


@pytest.mark.parametrize("round_trip_s", [0.0, 0.2])
def test_delay_that_is_known_is_no_change_of_the_network(round_trip_s):
    """Three round trips more than the links need each time, whether they are known or not."""
    planner, nodes = alike(4)
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e4)
    planner.knowledge.note_delay(round_trip_s, is_bbr=False)
    capacities, windows = Capacities.from_lists([37.5e6] * 3 + [20e6], [37.5e6] * 3 + [20e6]), []
    for _ in range(6):
        iterate(planner, capacities, nodes, late_s=3 * 0.2)
        windows.append(window(planner))
    if round_trip_s:  # nothing is known of the first; then what the fastest can have on its way
        assert windows == [0] + 5 * [pytest.approx(2 / 3 * 37.5e6 * 0.2, rel=0.05)]


def routed(planner, nodes, capacities, iterations, cores_s, scheme="exact"):
    """Who routes each iteration: 'o' MXNet, 'p' the plan. Cores need cores_s of plans, four fifths of it of MXNet's own routing."""
    word = ""
    for _ in range(iterations):
        planned = plan(planner, scheme)
        decision = planned.decision
        if decision.kind is DecisionKind.LEFT:
            word += "o"
            planner.note_unmeasured(0.8 * cores_s)
            continue
        word += "p"
        sizes_bytes, servers = planner.layout.sizes_bytes, np.array(decision.plan.server_of_slice)
        result = exchange(nodes, capacities, sizes_bytes, servers, window(planner), MessageWeight())
        planner.judge(FinishedIteration(result.samples, max(result.time_s, cores_s)), planned)
    return word


@pytest.mark.jobs
def test_where_cores_set_the_pace_mxnet_routes_and_is_left_when_links_become_slow():
    planner, nodes = alike(4)
    planner.register([m.TensorSpec(str(k), 100_000, "float32", 0) for k in range(32)], 1e4)
    fast, slow = (Capacities.from_lists(rates, rates) for rates in ([1e9] * 4, [1e7] * 3 + [2e6]))
    word = routed(planner, nodes, fast, 300, cores_s=0.2)
    assert word[100:].count("p") < 0.1 * len(word[100:])
    for _ in range(3):
        planner.note_unmeasured(20.0)  # the links need it now: 6.4 s for the slowest node's own gradients alone
    assert "o" not in routed(planner, nodes, slow, 100, cores_s=0.2)[1:]


@pytest.mark.parametrize("scheme", ["elastic", "aware"])
def test_iterations_of_schemes_that_never_leave_routing_say_nothing_for_those_that_do(scheme):
    planner, nodes = alike(4)
    planner.register([m.TensorSpec(str(k), 100_000, "float32", 0) for k in range(32)], 1e4)
    fast = Capacities.from_lists([1e9] * 4, [1e9] * 4)
    assert routed(planner, nodes, fast, 50, cores_s=0.2, scheme=scheme) == 50 * "p"
    assert routed(planner, nodes, fast, 1, cores_s=0.2) == "p"  # its own plans are to be compared first


@pytest.mark.jobs
def test_where_links_set_the_pace_mxnet_never_routes():
    planner, nodes = alike(6)
    planner.register([m.TensorSpec(str(k), 100_000, "float32", 0) for k in range(32)], 1e3)
    assert routed(planner, nodes, uneven({}), 100, cores_s=0.0) == 100 * "p"


def far(planner, nodes, capacities, iterations, round_trip_s=0.17, wait_s=0.3):
    """How each iteration of a job with delay goes: 'e' equal shares that nobody times, 'p' a plan, for which all wait.

    'o' is MXNet's own routing, which takes longer than the last plan.
    """
    planner.knowledge.note_delay(round_trip_s, is_bbr=False)
    word, took_s = "", 0.0
    for _ in range(iterations):
        planned = plan(planner, "exact")
        decision, sizes_bytes = planned.decision, planner.layout.sizes_bytes
        if decision.plan is None:
            word += "o"
            planner.note_unmeasured(1.2 * took_s + wait_s)
            continue
        servers = np.array(decision.plan.server_of_slice)
        result = exchange(nodes, capacities, sizes_bytes, servers, window(planner), MessageWeight())
        took_s = result.time_s + 3 * round_trip_s
        if decision.kind is DecisionKind.LEFT:
            assert (decision.scheme, decision.is_measured, decision.iterations) == (AVERAGE, False, 1)
            word += "e"
            planner.note_unmeasured(took_s)
            continue
        word += "p"
        planner.judge(FinishedIteration(result.samples, took_s, iteration_s=took_s + wait_s), planned)
    return word


SMALL, LARGE = m.TensorSpec("w", 150_000, "float32", 0), m.TensorSpec("w", 15_000_000, "float32", 0)
LAN_RATES, WAN_RATES = [1e7, 5e6, 1e7, 3e6], [1e5, 5e4, 1e5, 3e4]  # bytes per second


def test_where_delay_sets_the_pace_shares_are_equal_and_untimed_until_links_become_slow():
    planner, nodes = alike(4)
    planner.register([SMALL], 1e4)
    word = far(planner, nodes, Capacities.from_lists(LAN_RATES, LAN_RATES), 200)
    assert "e" in word[:10]
    assert word[20:].count("p") <= 0.1 * len(word[20:])
    assert planner.is_settled(PlanOptions(EXACT)) == (word[-1] == "e")
    slow = far(planner, nodes, Capacities.from_lists(WAN_RATES, WAN_RATES), 60)
    assert slow[20:].count("e") <= 5, "a trial at most"
    assert slow[20:].count("o") <= 5, "likewise"


def test_looks_without_a_window_are_left_to_iterations_that_are_timed():
    """At 4.5 ms windows are not those of delay, and delay sets the pace of an exchange that takes 14 ms of links."""
    planner, nodes = alike(4)
    planner.register([SMALL], 1e4)
    rates = Capacities.from_lists([1e8] * 4, [1e8] * 4)
    looks = Counter()
    for _ in range(300):
        word = far(planner, nodes, rates, 1, round_trip_s=0.0045, wait_s=0.01)
        looks[word] += not planner.present.windows
    assert looks["e"] == 0
    assert looks["p"] > 0


def test_where_links_set_the_pace_delay_makes_no_shares_equal():
    planner, nodes = alike(4)
    planner.register([LARGE], 1e4)
    assert far(planner, nodes, Capacities.from_lists(LAN_RATES, LAN_RATES), 40) == 40 * "p"


@pytest.mark.parametrize("plane", [AGENTS_WITHOUT_RING, replace(PS_LITE, new_loads=None)])
def test_a_data_plane_without_a_way_of_its_own_has_equal_shares_where_delay_sets_the_pace(plane):
    names = [f"n{i}" for i in range(4)]
    job = JobNodes.of(names, set(names), {name: rank for rank, name in enumerate(names)})
    planner = new_planner(job, CapacityEstimator, plane=plane)
    planner.register([SMALL], 1e4)
    assert "e" in far(planner, job.nodes, Capacities.from_lists(LAN_RATES, LAN_RATES), 10)


def test_where_sums_of_slices_are_checked_mxnet_never_routes():
    planner, nodes = alike(4, may_leave=False)
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e4)
    fast = Capacities.from_lists([1e9] * 4, [1e9] * 4)
    assert routed(planner, nodes, fast, 50, cores_s=0.2) == 50 * "p"


def test_tensors_beyond_mxnets_own_keys_are_never_left_to_it():
    """It has 4096 keys here, which every set of tensors has its own of."""
    planner, nodes = alike(4)
    fast = Capacities.from_lists([1e9] * 4, [1e9] * 4)
    for group, expected in ((0, "o"), (1, "p"), (0, "o")):
        planner.register([m.TensorSpec(f"{group}.{k}", 1000, "float32", 0) for k in range(2100)], 1e4)
        assert expected in routed(planner, nodes, fast, 20, cores_s=0.2)[-3:]


def specs(model):
    return [m.TensorSpec(tensor.name, tensor.elements, tensor.dtype, 0) for tensor in load(model)]


def with_rates(planner, rates_mbps):
    """The oracle's next plan where nodes have these rates."""
    rates = dict(zip(planner.nodes.names, (np.asarray(rates_mbps) * 125e3).tolist(), strict=True))
    planner.knowledge.note_configured(wire.Configured(rates, rates, []))
    return plan(planner, "oracle")


def most_slots(layouts):
    """By class of slots, the most slices that any of the layouts has."""
    most = Counter()
    for layout in layouts:
        most |= Counter((one.dtype, one.elements) for one in layout.slices)
    return most


@pytest.mark.jobs
@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("count", [4, 96, 128, 1000])
def test_whatever_the_rates_every_slot_has_a_key_and_plans_are_near_the_bound(model, count):
    """From 10 Mbit/s to 100 Gbit/s, also one fast node alone, changed before every plan; the layout changes and comes back."""
    (planner, _), drawn = alike(count), np.random.default_rng(count)
    layouts, slots = [], Counter()  # slots by server
    for alpha_bytes in (FIRST_ALPHA_BYTES, 120_000, FIRST_ALPHA_BYTES):
        layouts.append(planner.register(specs(model), alpha_bytes))
        for number in range(6):
            rates_mbps = 10 ** drawn.uniform(1, 5, count) if number % 2 else np.full(count, 100.0)
            rates_mbps[drawn.integers(count)] = 100_000
            for new in with_rates(planner, rates_mbps).new_slots:
                assert plan_slot_key(new.server, new.first + new.count - 1, count) < 1 << 31
                slots[new.server] += new.count
            found = planner.present.decision.plan
            assert found.predicted_s < 1.01 * found.bound_s
            assert max(slots.values()) <= most_slots(layouts).total()
    assert slots.total() == planner.slot_count


@pytest.mark.jobs
def test_layouts_whose_slices_might_outnumber_a_servers_keys_are_refused():
    """As they are registered, before any plan: equal shares would need few of those slots."""
    planner, _ = alike(2000)
    for slice_bytes in (4.0, 8.0):
        planner.register([m.TensorSpec("w", 300_000, "float32", 0)], 1.0, slice_bytes)
    with pytest.raises(
        InputError, match=r"one server may come to hold 536666 slices, .* allows 523512 on each of 2000"
    ):
        planner.register([m.TensorSpec("w", 300_000, "float32", 0)], 1.0, 12.0)


@pytest.mark.jobs
def test_where_some_compute_for_much_longer_nothing_is_held_back():
    """A window would hold back what the others can push before the slowest has computed."""
    planner, nodes = alike(6)
    planner.register([m.TensorSpec("w", 3_200_000, "float32", 0)], 1e3)
    windows = []
    for spread_s in [0.0] * 6 + [2.0] * 6:
        iterate(planner, uneven({}), nodes, spread_s=spread_s)
        windows.append(window(planner) > 0)
    assert any(windows[:6])
    assert not any(windows[7:])


def test_shares_that_wander_seldom_ask_for_new_slots():
    """A job waits while slots are made. No server ever has more than twice what a plan has put there."""
    (planner, _), drawn = alike(4), np.random.default_rng(7)
    most = most_slots([planner.register(specs("mobilenet"), FIRST_ALPHA_BYTES)])
    asked, made, needed, rates_mbps = Counter(), Counter(), Counter(), np.full(4, 100.0)
    for _ in range(60):
        rates_mbps *= 10 ** drawn.normal(0, 0.05, 4)
        planned = with_rates(planner, rates_mbps)
        for new in planned.new_slots:
            place = new.server, new.dtype, new.elements
            asked[place] += 1
            made[place] += new.count
        classes = [planner.layout.slot_classes[k] for k in planner.layout.class_of_slice]
        used = Counter((server, *one) for server, one in zip(planned.message.server_of_slice, classes, strict=True))
        needed |= used
    for (_, *slot_class), times in asked.items():
        assert times <= 2 + np.log2(most[tuple(slot_class)])
    assert all(count <= 2 * needed[place] for place, count in made.items())


def test_elastic_does_not_keep_another_schemes_plan():
    planner = planner_of()
    plan(planner, "average")
    begun = plan(planner, "elastic", 1).message
    assert begun.scheme == "elastic"
    assert plan(planner, "elastic", 2).message.server_of_slice == begun.server_of_slice


def test_only_a_plan_that_cannot_change_is_settled():
    """A settled plan goes out before the iteration ends, when no slots can be made for it."""
    turning = Scheme("turning", lambda _: (None, "in turn"), measures=False)
    planner = planner_of()
    settled = [one.name for one in (*SCHEMES.values(), turning) if planner.is_settled(PlanOptions(one))]
    assert settled == ["stock", "p3", "average"]


def test_a_scheme_that_keeps_what_it_has_not_made_is_refused():
    schemes = {"idle": Scheme("idle", lambda _: (None, "nothing to do"))}
    with pytest.raises(InputError, match="scheme idle keeps a plan that it has not made yet"):
        plan(planner_of(), "idle", schemes=schemes)


def test_a_scheme_may_keep_its_plan_when_tensors_are_cut_anew_or_another_scheme_had_its_turn():
    """Its proportions stay, whatever came between."""

    def halves(situation):
        if situation.iteration:
            return None, "stays"
        return np.array([0.7, 0.1, 0.1, 0.1]) * situation.layout.model_bytes, "the first sums most"

    schemes = {**SCHEMES, "halves": Scheme("halves", halves)}
    planner, _ = alike(4, may_leave=False)
    for iteration, (elements, alpha_bytes) in enumerate([(3_200_000, 1e4), (3_200_000, 2e4), (3_000_000, 1e4)]):
        planner.register([m.TensorSpec("w", elements, "float32", 0)], alpha_bytes)
        first = plan(planner, "halves", iteration, schemes=schemes).decision
        plan(planner, "average", iteration, schemes=schemes)
        for found in (first, plan(planner, "halves", iteration + 10, schemes=schemes).decision):
            parts = np.array(found.plan.shares_bytes) / planner.layout.model_bytes
            assert parts == pytest.approx([0.7, 0.1, 0.1, 0.1], abs=0.03)
            assert len(found.plan.server_of_slice) == len(planner.layout.slices)
            assert found.kind is DecisionKind.PLANNED


def reworded(situation):
    """As EXACT, in other words where it needs equal shares."""
    equal = equal_by_need(situation)
    return EXACT.decide(situation) if equal is None else (equal[0], "as long as links are unknown")


def kept(situation):
    """The same, but equal shares that are there already stay."""
    if equal_by_need(situation) is None:
        return EXACT.decide(situation)
    present = situation.present_bytes
    is_equal = present is not None and np.ptp(present) < 0.01 * situation.layout.model_bytes
    return (None, "all stays") if is_equal else reworded(situation)


@pytest.mark.parametrize("decide", [reworded, kept])
def test_the_words_of_a_reason_decide_nothing(decide):
    """Also after the script has pushed other tensors: then plans are not trusted until equal shares have been seen."""
    schemes = {**SCHEMES, "mine": Scheme("mine", decide, follows_estimates=True)}
    rates = [25e6, 15e6, 20e6, 6e6]
    took = {}
    for scheme in ("exact", "mine"):
        planner, nodes = alike(4, may_leave=False)  # whether MXNet routes is EXACT's to say
        took[scheme] = []
        for size in (3_200_000, 3_000_000):
            planner.register([m.TensorSpec("w", size, "float32", 0)], 1e4)
            known = Capacities.from_lists(rates, rates)
            done = by_planner(scheme, nodes, planner.layout, known, 4, planner, schemes=schemes)
            took[scheme] += [one.time_s for one in done]
    assert took["mine"] == took["exact"]
    assert took["exact"][-1] < 0.8 * took["exact"][4]


def early(planner, nodes, count, wait_s=10.0):
    """Whether, during each of so many iterations, the next plan should be made early."""
    said, options = [], PlanOptions(find_scheme("exact", SCHEMES))
    for _ in range(count):
        is_early = bool(said and said[-1])
        planned = planner.plan(0, 0, options, is_early=is_early)
        said.append(planner.should_plan_early(options))
        servers = np.array(planned.decision.plan.server_of_slice)
        done = exchange(nodes, network(USUAL), planner.layout.sizes_bytes, servers, planned.windows or 0)
        finished = FinishedIteration(done.samples, done.time_s, plan_wait_s=wait_s, is_early=is_early)
        planner.judge(finished, planned)
    return said


def test_the_first_plan_of_a_block_is_followed_by_none_that_is_early_and_its_wait_does_not_count():
    planner = planner_of(AGENTS_WITHOUT_RING)
    assert not any(said := early(planner, NODES, 3)), said
    assert early(planner, NODES, 8)[-1]
    planner.begin_block()
    assert early(planner, NODES, 3) == [False, True, True]
    turns = planner_of(AGENTS_WITHOUT_RING)
    for _ in range(20):  # each first iteration of a turn waits for the end of another job's turn
        turns.begin_block()
        assert early(turns, NODES, 1) + early(turns, NODES, 4, wait_s=0.0) == 5 * [False]


def test_where_delay_counts_few_plans_wait_also_after_a_time_in_which_it_did_not():
    planner = planner_of(AGENTS_WITHOUT_RING)
    planner.knowledge.note_delay(0.2, is_bbr=False)
    assert 1 <= early(planner, NODES, 100)[20:].count(False) <= 4  # the wait is measured anew
    for calm in range(4, 9):
        planner.knowledge.note_delay(0.0, is_bbr=False)
        early(planner, NODES, calm)
        planner.knowledge.note_delay(0.2, is_bbr=False)
        assert early(planner, NODES, 20)[5:].count(False) <= 2
