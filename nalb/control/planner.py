"""From samples to plans: what the coordinator knows of the job's nodes, slices, slots and rates."""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nalb.batching.joint_control import Network
from nalb.control import messages as m
from nalb.control.wires import FAR_S
from nalb.errors import InputError
from nalb.measurement.estimators import DIFFERENT, ESTIMATORS
from nalb.measurement.samples import Ints, Samples
from nalb.measurement.traffic import Traffic
from nalb.planning.elastic import WINDOW, Observation
from nalb.planning.nodes import Capacities, Floats, Node, completion_s, load_bytes
from nalb.planning.schemes import NOT_MEASURED, NOT_THE_LINKS, Plan, Situation, decide
from nalb.planning.shares import bound_s
from nalb.planning.slices import NUM_PROBE, Layout, Tensor, build_layout
from nalb.planning.slots import most_plan_slots

SlotClass = tuple[str, int]  # dtype, elements
LOW_WINDOW_BYTES = (
    2_000_000  # measured on wan6-static: from 1 MB on nothing is gained, without a window a tenth is lost
)
# Where delay makes up this part of an iteration, what workers push all at once does not fit into queues, and what it shows is
# TCP's recovery: every iteration has a window, of what the fastest node can have on its way (measured at 50 to 200 ms, queues
# of 50 ms: with all of that or more, packets are lost).
DELAY_PART = 0.05
WAY_PART = 2 / 3
WINDOW_PART = 8  # of the model: each iteration begins with so much at full speed, which also shows what nodes can do
# An iteration that takes more than so many times the predicted time, or less than its inverse: the estimates are wrong. On a
# network that stands still, the ratio was 1.07 to 1.18 (wan6-static).
SURPRISE = 1.3
# What an iteration takes besides is so many round trips: the first push's way, the last sum's, and TCP's slow start, which all
# connections go through at once (measured with pacing at 100 and 200 ms: 2 to 3).
ROUND_TRIPS = 3
LATE = 1.1  # from here on a single pair may be what the prediction does not know
WORTH = 0.95  # of the present plan's time: what nodes that are faster than estimated must promise, to be measured again
CHANGED = 1.2  # times the usual ratio, or its inverse
MOST_BLIND = 4  # iterations with a window in a row: what they hide must come to light
CALM = 4  # iterations as predicted, in a row, without a window once the network has changed
WARY = 8  # iterations in which the ends of iterations are not relied on, once that was wrong
MAX_PATIENCE = 32  # iterations that something which did not help is left alone, at most
REMEMBERED = 4096  # plans: more than there are iterations within a deadline
HEADER_BYTES = 1000  # of a slice's message, at most
# Plans that have cost so many iterations of equal shares more than those are given up: whatever they rest on is not so. One
# iteration counts for half of it at most, since the network may have changed, and what it waited for gradients not at all: that
# is no fault of the plan. `elastic` has none to compare with: it explores shares that may be slower, as its authors have it, and
# is there to be compared with.
MOST_REGRET = 1.0
PACE = 1.25  # equal shares that take so many times what the links need: something else sets the pace
UNWINDOWED = ("elastic",)  # learns from how long each server takes: a window, whoever's, keeps them in step
UNMEASURED = ("stock", "p3", "average")  # schemes that send no forecasts: they do not need to know


def usual_window_bytes(model_bytes: int) -> int:
    """How many bytes of a worker are under way at a time once all nodes are measured."""
    return max(LOW_WINDOW_BYTES, model_bytes // WINDOW_PART)


@dataclass(frozen=True)
class Decision:
    """A plan and the slots that must exist before it may go out."""

    plan: m.Plan
    new_slots: list[m.NewSlots]


class Backoff:
    """Iterations for which something is left alone, each time in a row twice as many, up to MAX_PATIENCE."""

    def __init__(self, shortest: int):
        self._shortest = self._next = shortest
        self.left = 0

    def begin(self) -> None:
        """Leave it alone, for twice as long the next time."""
        self.left, self._next = self._next, min(2 * self._next, MAX_PATIENCE)

    def pass_one(self) -> None:
        """An iteration has passed."""
        self.left = max(0, self.left - 1)

    def be_short(self) -> None:
        """It did well: the next time is the first one again."""
        self._next = self._shortest

    def end(self) -> None:
        """At once, and the next time is the first one again."""
        self.left = 0
        self.be_short()


class Planner:
    """One job's planner; pure apart from what it has been told."""

    def __init__(
        self, names: list[str], workers: set[str], servers: dict[str, int], estimator: str, window_bytes: int | None
    ):
        self._names = names
        self._nodes = [Node(name, name in workers, name in servers) for name in names]
        self._rank_of_node = {i: servers[name] for i, name in enumerate(names) if name in servers}
        self.window_bytes = window_bytes
        self.round_trip_s = 0.0  # to the farthest node, without queues
        self._estimator = ESTIMATORS[estimator](len(names))
        self._observations: list[deque[Observation]] = [deque(maxlen=WINDOW) for _ in names]
        self._configured: Capacities | None = None
        self._layout: Layout | None = None
        self._slots: dict[tuple[int, SlotClass], list[int]] = {}  # (node, class) -> slot numbers on its server
        self._next_slot = dict.fromkeys(self._rank_of_node, 0)
        self._most_of_class: Counter[SlotClass] = Counter()  # slices of a class, in the layout that has most of it
        self.joint_shares: Floats | None = None  # per node, bytes: what scheme joint asks for
        self._present: Plan | None = None  # None while MXNet routes by itself
        self._shares: deque[Ints] = deque(maxlen=REMEMBERED)  # of each iteration, the last one's last
        self._measured = False
        self._links_set_pace = True
        self._stuck = Backoff(1)  # something else sets the pace: it is not measured anew
        self._blind = 0  # iterations with a window since the last without
        self._sent_window = 0  # bytes, with the last plan
        self._wary = Backoff(WARY)  # ends of iterations are not relied on
        self._calm = CALM  # iterations as predicted, in a row; none where the estimates may not hold
        self._regret = 0.0  # what plans have cost more than equal shares, in times of theirs
        self._usual: float | None = None  # time over prediction of the first iteration planned on what holds now
        self._equal_s: float | None = None  # what equal shares took last
        self._given_up = Backoff(1)  # shares stay equal, whatever is measured, since plans took longer
        self._reason = ""

    @property
    def _delay_s(self) -> float:
        """What an iteration takes besides what the links need."""
        return ROUND_TRIPS * self.round_trip_s

    @property
    def layout(self) -> Layout:
        """What the registered tensors were cut into."""
        assert self._layout is not None
        return self._layout

    def configure(self, message: m.Configured) -> None:
        """Learn the configured rates, for the oracle and the bound."""
        self._configured = message.capacities(self._names)

    def register(
        self,
        tensors: Sequence[m.TensorSpec],
        alpha_bytes: float,
        fixed_slice_bytes: float | None = None,
        num_probe: int = NUM_PROBE,
    ) -> str:
        """Cut what the workers push; returns the layout's digest. InputError where it cannot be cut, or keys may run out."""
        layout = build_layout(
            [Tensor(t.name, t.elements, t.dtype, t.group) for t in tensors],
            num_nodes=len(self._nodes),
            num_servers=len(self._rank_of_node),
            alpha_bytes=alpha_bytes,
            fixed_slice_bytes=fixed_slice_bytes,
            num_probe=num_probe,
        )
        self._reserve_slots(layout)
        if self._layout is not None and layout.tensors != self._layout.tensors:
            self._equal_s, self._regret = None, 0.0
            for window in self._observations:
                window.clear()
            self._links_set_pace = False  # for one iteration: what equal shares take of these
        self._layout, self._present = layout, None
        return layout.digest()

    def _reserve_slots(self, layout: Layout) -> None:
        """InputError where plans of this layout and of those before it might need more slots on a server than have keys.

        A server gets a new slot of a class only when a plan gives it more slices of that class than it has slots. So it never
        has more slots of a class than some layout has slices of it. Summed over all classes that is the most slots that a
        server can come to have, whatever the rates and in whatever order plans and layouts come. That sum is checked here.
        """
        for slot_class, count in Counter((s.dtype, s.elements) for s in layout.slices).items():
            self._most_of_class[slot_class] = max(self._most_of_class[slot_class], count)
        needed, servers = self._most_of_class.total(), len(self._rank_of_node)
        if needed > (most := most_plan_slots(servers)):
            raise InputError(
                f"one server may come to hold {needed} slices, counting those of earlier layouts, and MXNet's key hash allows "
                f"{most} on each of {servers} servers: use larger slices (--alpha-bytes), or push the same keys each time"
            )

    def observe(self, samples: Samples, took_s: float, exposed_s: float = 0.0) -> None:
        """One iteration's samples, and how long it took from first push to last pull.

        exposed_s: of it, after all had computed. Before, links also waited for gradients: so the exchange alone would have
        taken something between the two, and only what lies outside is held against the estimates.
        """
        if not len(samples):
            return
        traffic, is_free, present = Traffic(samples), not self._sent_window, self._present
        if present is None:
            self._estimator.observe(traffic, is_free)
            return
        exchange_s = exposed_s or took_s
        if present.predicted_s is None or not self._links_set_pace:
            self._estimator.observe(traffic, is_free)
            if self._reason in (NOT_MEASURED, NOT_THE_LINKS):
                self._equal_s = exchange_s
            self._judge_pace(present, traffic, exchange_s)
            self._given_up.pass_one()
            self._links_set_pace &= not self._given_up.left
        else:
            expected_s = present.predicted_s + self._delay_s
            ratio = min(max(expected_s, exchange_s), took_s) / expected_s
            self._judge_trust(ratio)
            # by what was known before it: if it is one pair, the rest still holds
            is_capped = ratio > LATE and self._calm > 0 and self._estimator.find_capped_pair(traffic)
            anew = not is_capped and self._is_to_measure_anew(ratio)
            self._estimator.observe(traffic, is_free, anew, follow=not is_capped and not self._wary.left)
            if not self._regrets(exchange_s, ratio):
                if is_capped:
                    self._usual = None  # plans around it take what they should again: that is no change
                if self._would_gain():
                    if self._calm and not is_free and not self._wary.left:
                        self._estimator.rely_on_end(traffic)
                    self._calm = 0
        if is_free or present.scheme in UNWINDOWED:
            served_s = traffic.served_s(len(self._nodes))
            for one in np.flatnonzero(served_s > traffic.first_s).tolist():
                self._observations[one].append(Observation(present.shares_bytes[one], served_s[one] - traffic.first_s))

    def most_bytes(self, iterations: int) -> Floats:
        """What plans have let one node send to the server on each node, or have from it, over so many iterations, shape (N,).

        The one before them is included, of which some may have been left, and room for headers.
        """
        if self._present is None:
            return np.full(len(self._nodes), np.inf)
        room = HEADER_BYTES * len(self._present.server_of_slice)
        lately = [self._shares[-k] for k in range(1, min(iterations + 1, len(self._shares)) + 1)]
        lately *= 1 + (len(lately) == 1)  # the first iteration may bring what came before it, without a plan
        return np.asarray(np.sum(lately, axis=0, dtype=np.float64) + room * len(lately))

    def _judge_pace(self, present: Plan, traffic: Traffic, took_s: float) -> None:
        """Whether an iteration of equal shares took what the links need; else other shares would follow noise.

        If not, the network may have changed while it was measured: it is measured anew, at once, and each time in a row after
        twice as many iterations.
        """

        def fits() -> bool:
            capacities = self._capacities()
            if capacities is None:
                return True
            shares = np.array(present.shares_bytes, dtype=float)
            links_s = completion_s(self._nodes, shares, sum(present.shares_bytes), capacities)
            return took_s <= PACE * (links_s + self._delay_s)

        self._links_set_pace = fits() or (self._estimator.find_capped_pair(traffic) and fits())
        if self._links_set_pace:
            self._stuck.end()
        elif self._stuck.left:
            self._stuck.pass_one()
        else:
            self._stuck.begin()
            self._estimator.forget()

    def _judge_trust(self, ratio: float) -> None:
        """Rely on how iterations end unless a plan that did took much longer; then each time in a row for twice as many not."""
        if not self._estimator.followed:
            self._wary.pass_one()
        elif ratio > SURPRISE:
            self._wary.begin()
        else:
            self._wary.be_short()

    def _is_to_measure_anew(self, ratio: float) -> bool:
        """Whether what is known of the nodes does not hold any more, by a planned iteration's time over its prediction.

        That iteration tells part of the rest, all of it if it went without a window. The next ones go without, and the first of
        them counts alone too.
        """
        changed = self._usual is not None and not 1 / CHANGED < ratio / self._usual < CHANGED
        surprising = changed or not 1 / SURPRISE < ratio < SURPRISE
        anew = surprising or self._calm == 0
        self._calm = 0 if surprising else self._calm + 1
        self._usual = None if anew else self._usual or ratio
        return anew

    def _would_gain(self) -> bool:
        """Whether nodes that have outgrown their estimates could make iterations shorter, each by what is known of it."""
        outgrown, capacities = self._estimator.outgrown, self._capacities()
        if capacities is None or not outgrown.any():
            return False
        up, down = np.where(outgrown, DIFFERENT, 1.0) * np.array([capacities.up, capacities.down])
        raised = Capacities(up, down, capacities.pairs)
        times_s = [bound_s(self._nodes, self.layout.model_bytes, one) for one in (raised, capacities)]
        return times_s[0] < WORTH * times_s[1]

    def _regrets(self, took_s: float, ratio: float) -> bool:
        """Back to equal shares where plans have cost more than those: for one iteration, each time in a row for twice as many.

        So reports that are false, by mistake or on purpose, cost little more than equal shares would. Those may take any
        number of times as long as a plan where a server is not a worker too, and what they took before the network changed
        says nothing: there a plan that takes what it promised stands.
        """
        is_bounded = all(node.is_worker for node in self._nodes)
        if self._equal_s is not None and (is_bounded or ratio > SURPRISE):
            self._regret = max(0.0, self._regret + min(took_s / self._equal_s - 1, MOST_REGRET / 2))
        if self._regret <= MOST_REGRET:
            if not self._regret:
                self._given_up.be_short()
            return False
        self._estimator.forget()
        self._usual, self._calm, self._regret = None, CALM, 0.0
        self._given_up.begin()
        return True

    def _capacities(self) -> Capacities | None:
        estimate = self._estimator.estimate()
        return Capacities.from_estimates(self._nodes, estimate.up, estimate.down, estimate.pairs)[0]

    def network(self, rank_of_node: Mapping[str, int]) -> Network | None:
        """What a joint plan may know; None while the links are not measured or do not set the pace."""
        capacities = self._capacities()
        if capacities is None or self._layout is None or not self._links_set_pace:
            return None
        ranks = [rank_of_node[node.name] for node in self._nodes if node.is_worker]
        return Network(self._nodes, ranks, self._layout.model_bytes, capacities)

    def decide(self, iteration: int, epoch: int, scheme: str, forecasts: bool | None = None) -> Decision:
        """The plan of an iteration. MXNet's own schemes (stock, p3) route by themselves: their plan is empty.

        forecasts: whether messages are timed; None: as the scheme needs.
        """
        assert self._layout is not None
        self._measured = scheme not in UNMEASURED if forecasts is None else forecasts
        if scheme in ("stock", "p3"):
            self._present, self._sent_window, self._reason = None, 0, f"{scheme}: MXNet's own routing"
            return Decision(m.Plan(iteration, epoch, scheme, self._measured, 0, [], []), [])
        situation = Situation(
            iteration,
            self._nodes,
            self._layout,
            self._capacities(),
            self._configured,
            [tuple(window) for window in self._observations],
            self._present,
            self._links_set_pace,
            self.joint_shares,
        )
        plan, self._reason = decide(scheme, situation)
        if plan is not None:
            self._present = plan
        assert self._present is not None
        self._shares.append(np.array(self._present.shares_bytes, dtype=np.int64))
        slots, new_slots = self._place(self._present)
        ranks = [self._rank_of_node[node] for node in self._present.server_of_slice]
        self._sent_window = self._window()
        return Decision(m.Plan(iteration, epoch, scheme, self._measured, self._sent_window, ranks, slots), new_slots)

    def _window(self) -> int:
        """Bytes of a worker under way at a time: enough for the links' delay and queues, little enough to keep all in step."""
        assert self._layout is not None
        if self.window_bytes is not None:
            return self.window_bytes
        assert self._present is not None
        if self._present.scheme in UNWINDOWED:
            return 0
        estimate, usual_bytes = self._estimator.estimate(), usual_window_bytes(self._layout.model_bytes)
        links_s, is_far = self._present.predicted_s, self.round_trip_s >= FAR_S
        if estimate.complete and links_s and is_far and self._delay_s > DELAY_PART * links_s:
            fastest = np.minimum(estimate.up, estimate.down).max()
            return max(usual_bytes, int(WAY_PART * fastest * self.round_trip_s))
        if not estimate.complete or self._calm < CALM or self._blind == MOST_BLIND:
            self._blind = 0
            return 0
        self._blind += 1
        return usual_bytes

    def _place(self, plan: Plan) -> tuple[list[int], list[m.NewSlots]]:
        """The slot number of each slice: the k-th of its class on its server; missing ones are numbered and returned."""
        classes = self.layout.slot_classes
        of_slice = np.array(plan.server_of_slice) * len(classes) + self.layout.class_of_slice
        places, place_of_slice, wanted = np.unique(of_slice, return_inverse=True, return_counts=True)
        have, new = [], []
        for place, count in zip(places.tolist(), wanted.tolist(), strict=True):
            node, which = divmod(place, len(classes))
            numbers = self._slots.setdefault((node, classes[which]), [])
            if (missing := count - len(numbers)) > 0:
                first = self._next_slot[node]
                self._next_slot[node] += missing
                numbers.extend(range(first, first + missing))
                dtype, elements = classes[which]
                new.append(m.NewSlots(self._rank_of_node[node], first, missing, elements, dtype))
            have.append(numbers)
        slots = [have[k][slot] for k, slot in zip(place_of_slice.tolist(), plan.slot_of_slice, strict=True)]
        return slots, new

    # ---- what observers are told

    def describe_layout(self) -> dict[str, Any]:
        """Once per registration."""
        assert self._layout is not None
        return {
            "model_bytes": self._layout.model_bytes,
            "slices": len(self._layout.slices),
            "probes": sum(s.is_probe for s in self._layout.slices),
            "slice_bytes": max(s.size_bytes for s in self._layout.slices),
        }

    def describe_plan(self) -> dict[str, Any]:
        """Who holds how much, and why."""
        if self._present is None:
            return {"reason": self._reason}
        shares = np.array(self._present.shares_bytes, dtype=float)
        return {"reason": self._reason, "shares": self._by_name(shares), "predicted_s": self._present.predicted_s}

    def describe_iteration(self, samples: Samples) -> dict[str, Any]:
        """What the iteration was planned on and what it measured; rates in bytes per second."""
        assert self._layout is not None
        model = self._layout.model_bytes
        slots = sum(self._next_slot.values())
        told: dict[str, Any] = {"measured": self._measured, "round_trip_s": self.round_trip_s, "slots": slots}
        told |= self.describe_plan()
        shares = None if self._present is None else np.array(self._present.shares_bytes, dtype=float)
        if shares is not None:
            told["load_bytes"] = self._by_name(load_bytes(self._nodes, shares, model))
        estimate = self._estimator.estimate()
        told["estimate"] = {
            "up": self._by_name(estimate.up),
            "down": self._by_name(estimate.down),
            "pairs": [[self._names[i], self._names[j], rate] for (i, j), rate in estimate.pairs.items()],
        }
        if self._configured is not None:
            told["configured"] = {
                "up": self._by_name(self._configured.up),
                "down": self._by_name(self._configured.down),
            }
            told["bound_s"] = bound_s(self._nodes, model, self._configured)
            if shares is not None:
                told["planned_s"] = completion_s(self._nodes, shares, model, self._configured)
        if len(samples):
            told["span_s"] = float(samples["end_s"].max() - samples["start_s"].min())
        return told

    def _by_name(self, values: Floats) -> dict[str, float | None]:
        told = (value if math.isfinite(value) else None for value in values.tolist())
        return dict(zip(self._names, told, strict=True))
