"""Wrong sums are impossible: every order in which a small job's messages can arrive, and many of a larger one's, keep the laws."""

import itertools

import pytest

from kvstore_patch.keys.plane import PS_LITE
from nalb.feedback.routing import Routing
from nalb.protocol import wire
from nalb.services.batching.messages import BatchSizes, Computed, JoinBatching
from nalb.services.composition import new_coordinator
from nalb.services.exchange import messages as m
from nalb.services.exchange import planner
from nalb.services.exchange.iterations import Iterations
from nalb.services.exchange.other_way import OtherWay
from nalb.services.exchange.worker_protocol import WorkerProtocol
from nalb.settings import from_environment
from tests.protocol.every_order import ITERATE, LEAVE, REGISTER, Broken, World, explore, to_gathered, wander
from tests.protocol.test_coordinator import ENVIRONMENT

pytestmark = pytest.mark.jobs

ONE = (REGISTER, [m.TensorSpec("w", 6000, "float32", 0)])
OTHER = (REGISTER, [m.TensorSpec("v", 9000, "float64", 0)])  # needs slots of its own
STEP, END = (ITERATE, None), (LEAVE, None)
TWO_STEPS = (ONE, STEP, STEP, END)
NEW_TENSORS = (ONE, STEP, OTHER, STEP, END)
CUT_ANEW = (wire.RunBlock("average", 1), wire.RunBlock("average", 1, alpha_bytes=1e3), wire.EndJob())


def job(program=TWO_STEPS, orders=(), workers=2, servers=1, scheme="average", alpha_bytes="1e9", **freedom):
    environment = {"DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers), "NALB_SCHEME": scheme}
    environment |= {"NALB_ALPHA_BYTES": alpha_bytes, "NALB_HOLD": "1" if orders else "0"}
    return World(from_environment(ENVIRONMENT | environment, "host"), program, orders, **freedom)


@pytest.mark.parametrize(
    ("world", "at_least"),
    [
        (job(), 150),
        (job(NEW_TENSORS), 250),
        (job(NEW_TENSORS, servers=2), 800),
        (job(workers=3), 1000),
        (job(NEW_TENSORS, CUT_ANEW), 1500),
        (job(repeats=1), 1000),
        (job(NEW_TENSORS, scheme="exact"), 300),
        (job(scheme="exact", repeats=1), 1000),
        (job((ONE, STEP, END), workers=1, resets=1), 500),
    ],
    ids=[
        "two steps",
        "new tensors",
        "two servers",
        "three workers",
        "cut anew",
        "a repeated message",
        "measured",
        "measured, repeated",
        "a connection reset",
    ],
)
def test_every_order_of_arrival_ends_well(world, at_least):
    worlds, ends = explore(to_gathered(world))
    assert worlds >= at_least
    assert ends > 0


@pytest.mark.parametrize("freedom", [{"overtakings": 2}, {"failures": 1}], ids=str)
def test_where_messages_overtake_or_workers_fail_no_sum_is_wrong(freedom):
    """The job may be aborted then, everywhere and with a reason."""
    explore(to_gathered(job(NEW_TENSORS, **freedom)), may_abort=True)


FAST_LINKS = {"alpha_bytes": "", "took_s": 1e-6}  # so that tensors are cut anew after three iterations
LARGE = (REGISTER, [m.TensorSpec("w", 60_000, "float32", 0)])


@pytest.mark.parametrize(
    ("program", "freedom", "layouts"),
    [
        ((LARGE, *[STEP] * 4, END), {}, 2),
        ((LARGE, *[STEP] * 4, END), {"repeats": 1}, 2),
        ((LARGE, *[STEP] * 4, OTHER, STEP, END), {}, 3),  # other tensors just as they are cut anew
    ],
    ids=["four steps", "a repeated message", "new tensors"],
)
def test_tensors_that_are_cut_anew_because_links_are_fast_end_well_in_every_order(program, freedom, layouts):
    world = to_gathered(job(program, **FAST_LINKS, **freedom))
    explore(world)
    assert max(plan.layout_version for plan in wander(world, 0).plans.values()) == layouts - 1


OWN_S = 0.45  # what iterations took so far: two of them make a plan


class BegunOwn(Routing):
    """MXNet's own routing is chosen for the first four iterations: 0 and 1 by one plan, 2 and 3 by the next."""

    def __init__(self):
        super().__init__()
        self._left = 4
        self._own.append(OWN_S)


@pytest.mark.parametrize(
    ("program", "freedom", "executed"),
    [
        ((ONE, *[STEP] * 5, END), {}, range(5)),
        ((ONE, STEP, STEP, END), {"repeats": 1}, range(2)),
        ((ONE, STEP, END), {"servers": 2}, range(1)),
        ((ONE, STEP, OTHER, STEP, END), {}, (0, 4)),
        ((ONE, STEP, STEP, OTHER, STEP, END), {"servers": 2}, (0, 1, 4)),
    ],
    ids=[
        "back to plans",
        "a repeated message",
        "left within a plan's iterations",
        "new tensors within them",
        "new tensors",
    ],
)
def test_plans_for_several_iterations_end_well_in_every_order(program, freedom, executed):
    world = to_gathered(job(program, scheme="exact", new_routing=BegunOwn, **freedom))
    explore(world)
    end = wander(world, 0)
    assert end.workers["w0"].executed == list(executed)
    assert any(plan.until > plan.iteration for plan in end.plans.values())


@pytest.mark.parametrize("freedom", [{"overtakings": 1}, {"failures": 1}], ids=str)
def test_where_messages_overtake_or_workers_fail_no_plan_is_obeyed_for_too_long(freedom):
    explore(
        to_gathered(job((ONE, STEP, OTHER, STEP, END), scheme="exact", new_routing=BegunOwn, **freedom)), may_abort=True
    )


class Equal(OtherWay):
    """Equal shares are the other way from the beginning."""

    def __init__(self, *args):
        super().__init__(*args)
        self.is_equal = True


@pytest.mark.parametrize(
    ("program", "freedom", "executed"),
    [
        ((ONE, *[STEP] * 5, END), {}, range(5)),
        ((ONE, STEP, STEP, OTHER, STEP, END), {"servers": 2}, (0, 1, 4)),
    ],
    ids=["back to plans", "new tensors"],
)
def test_equal_shares_that_nobody_times_end_well_in_every_order(monkeypatch, program, freedom, executed):
    monkeypatch.setattr(planner, "OtherWay", Equal)
    world = to_gathered(job(program, scheme="exact", new_routing=BegunOwn, **freedom))
    explore(world)
    end = wander(world, 0)
    assert end.workers["w0"].executed == list(executed)
    assert [plan.until - plan.iteration for plan in end.plans.values()] == [0] * len(end.plans)
    assert not all(plan.measure for plan in end.plans.values())


def test_obeying_a_plan_for_too_long_would_be_seen(monkeypatch):
    choose = WorkerProtocol.choose

    def eager(turn, inbox):
        chosen = choose(turn, inbox)
        if chosen is None and turn.plan is not None and not turn.is_registering:
            turn.iteration += 1
            return turn.plan
        return chosen

    monkeypatch.setattr(WorkerProtocol, "choose", eager)
    with pytest.raises(Broken, match="nobody sent"):
        explore(to_gathered(job((ONE, *[STEP] * 5, END), scheme="exact", new_routing=BegunOwn)), may_abort=True)


def test_gathering_in_every_order():
    explore(job((END,), servers=2))


SEEDS = range(60)


def wild(seed):
    """A larger job's end: thirty messages come twice; of even seeds, any may overtake any other of its sender."""
    program = (ONE, STEP, STEP, OTHER, STEP, STEP, END)
    freedom = {"overtakings": 0 if seed % 2 else 1000, "repeats": 30, "reports": bool(seed % 3)}
    return wander(to_gathered(job(program, workers=4, servers=3, **freedom)), seed, may_abort=seed % 2 == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_wild_orders_of_larger_jobs(seed):
    """All is well; only where messages overtake, the job may be aborted."""
    world = wild(seed)
    assert world.aborted or len(world.workers["w0"].executed) == 4


@pytest.mark.parametrize("seed", range(200))
def test_resets_at_any_moment_end_no_job(seed):
    """All orders of a session alone are in test_session.py; a reset delays messages and does nothing else."""
    world = job(NEW_TENSORS, workers=3, servers=2, reports=True, scheme="exact", resets=6)
    wander(world, seed)


def test_overtaking_may_end_a_job_and_need_not():
    assert {bool(wild(seed).aborted) for seed in SEEDS[::2]} == {False, True}


def test_repeats_alone_never_end_a_job():
    for seed in range(10):
        world = job((ONE, STEP, STEP, OTHER, STEP, STEP, END), workers=4, servers=3, repeats=60)
        wander(to_gathered(world), seed, may_abort=False)


# ---- the laws can be broken: each of these was, or would be, a wrong sum


def broken_coordinator(monkeypatch, name, replacement):
    monkeypatch.setattr(Iterations, name, replacement(getattr(Iterations, name)))


def test_a_plan_before_all_are_done_would_be_seen(monkeypatch):
    def hasty(done):
        def method(self, process, message, now_s):
            self._running = min(self._running, 1)
            return done(self, process, message, now_s)

        return method

    broken_coordinator(monkeypatch, "done", hasty)
    with pytest.raises(Broken, match="plan 2 is out before"):  # nothing is measured: 1 is out with 0
        explore(to_gathered(job()))


def test_slots_of_another_order_taken_for_these_would_be_seen(monkeypatch):
    """As it was: a new registration while slots were being made for the same iteration."""

    def forgetful(cut):
        def method(self, now_s):
            self._preparing.clear()
            cut(self, now_s)

        return method

    broken_coordinator(monkeypatch, "_begin_layout", forgetful)
    with pytest.raises(Broken, match="before it exists"):
        explore(to_gathered(job((ONE, STEP, (REGISTER, ONE[1]), STEP, END), CUT_ANEW)))


def test_obeying_a_plan_twice_would_be_seen(monkeypatch):
    choose = WorkerProtocol.choose

    def forgetful(turn, inbox):
        chosen = choose(turn, inbox)
        turn.iteration -= isinstance(chosen, m.Plan)
        return chosen

    monkeypatch.setattr(WorkerProtocol, "is_void", lambda *_: False)
    monkeypatch.setattr(WorkerProtocol, "choose", forgetful)
    with pytest.raises(Broken):
        explore(to_gathered(job(repeats=1)), may_abort=True)


def test_making_slots_twice_would_be_seen(monkeypatch):
    monkeypatch.setattr(WorkerProtocol, "is_new_order", lambda *_: True)
    with pytest.raises(Broken, match="again"):
        explore(to_gathered(job(repeats=1)), may_abort=True)


# ---- batch sizes


@pytest.mark.parametrize(("batching", "ahead"), [("lb-bsp", 0), ("lbb", 1)])
def test_batch_sizes_are_alike_in_every_order_of_reports(batching, ahead):
    """Three workers, three iterations; each reports as soon as it has the sizes, in every order of who is heard next."""
    environment = ENVIRONMENT | {"NALB_STOCK": "1", "NALB_SCHEME": "stock", "NALB_BATCHING": batching}
    settings = from_environment(environment | {"DMLC_NUM_WORKER": "3"}, "host")
    told = set()
    for order in set(itertools.permutations([0, 1, 2] * 2)):
        coordinator = new_coordinator(settings, 0.0, plane=PS_LITE)
        sizes = {f"w{rank}": [] for rank in range(3)}

        def say(rank, message, coordinator=coordinator, sizes=sizes):
            coordinator.receive(f"w{rank}".encode(), message, 0.0)
            assert coordinator.verdict is None
            while coordinator.outbox:
                name, answer = coordinator.outbox.popleft()
                if isinstance(answer, BatchSizes):
                    sizes[name.decode()].append(answer)

        for rank in range(3):
            say(rank, wire.Hello(wire.VERSION, "worker", f"n{rank}", rank, 1))
        for rank in order[:3] if len(set(order[:3])) == 3 else (0, 1, 2):
            say(rank, JoinBatching(32, None))
        reported = [0, 0, 0]
        waiting = list(order)
        while waiting:
            able = [r for r in waiting if reported[r] <= sizes[f"w{r}"][-1].until]
            rank = able[0]
            waiting.remove(rank)
            size = next(x for x in sizes[f"w{rank}"] if x.iteration <= reported[rank] <= x.until).sizes[rank]
            say(rank, Computed(reported[rank], size, 0.1 * (rank + 1), 1.0, 0.1, 0.0, 0.0))
            reported[rank] += 1
            assert sizes["w0"] == sizes["w1"] == sizes["w2"]
            assert all(sum(one.sizes) == 96 for one in sizes["w0"])
            assert sizes["w0"][-1].until <= min(reported) + ahead
        told.add(tuple(one.iteration for one in sizes["w0"]))
    assert len(told) == 1
