"""From samples to plans: what the coordinator knows of the job's nodes, slices, slots and rates."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nalb.batching.joint_control import Network
from nalb.control import messages as m
from nalb.measurement.estimators import DIFFERENT, ESTIMATORS
from nalb.measurement.samples import LinkSample
from nalb.measurement.traffic import Traffic
from nalb.planning.elastic import WINDOW, Observation
from nalb.planning.nodes import Capacities, Floats, Node, completion_s, load_bytes
from nalb.planning.schemes import NOT_MEASURED, NOT_THE_LINKS, Plan, Situation, decide
from nalb.planning.shares import bound_s
from nalb.planning.slices import NUM_PROBE, Layout, Tensor, build_layout

SlotClass = tuple[str, int]  # dtype, elements
LOW_WINDOW_BYTES = (
    2_000_000  # measured on wan6-static: from 1 MB on nothing is gained, without a window a tenth is lost
)
WINDOW_PART = 8  # of the model: each iteration begins with so much at full speed, which also shows what nodes can do
# An iteration that takes more than so many times the predicted time, or less than its inverse: the estimates are wrong. On a
# network that stands still, the ratio was 1.07 to 1.18 (wan6-static).
SURPRISE = 1.3
LATE = 1.1  # from here on a single pair may be what the prediction does not know
WORTH = 0.95  # of the present plan's time: what nodes that are faster than estimated must promise, to be measured again
MAX_PATIENCE = 32  # planned iterations before measuring anew is tried again where it does not help
CALM = 4  # iterations as predicted, in a row, after which it helps again
MORE = "more than was sent"
REMEMBERED = 4096  # plans: more than there are iterations within a deadline
HEADER_BYTES = 1000  # of a slice's message, at most
# A plan that takes so many times what equal shares took is given up: whatever it rests on is not so. `elastic` has none to compare
# with: it explores shares that may be slower, as its authors have it, and is there to be compared with.
WORSE = 1.15
PACE = 1.25  # equal shares that take so many times what the links need: something else sets the pace
UNMEASURED = ("stock", "p3", "average")  # schemes that send no forecasts: they do not need to know


def usual_window_bytes(model_bytes: int) -> int:
    """How many bytes of a worker are under way at a time once all nodes are measured."""
    return max(LOW_WINDOW_BYTES, model_bytes // WINDOW_PART)


@dataclass(frozen=True)
class Decision:
    """A plan and the slots that must exist before it may go out."""

    plan: m.Plan
    new_slots: list[m.NewSlots]


class Planner:
    """One job's planner; pure apart from what it has been told."""

    def __init__(
        self, names: list[str], workers: set[str], servers: dict[str, int], estimator: str, window_bytes: int | None
    ):
        self._names = names
        self._nodes = [Node(name, name in workers, name in servers) for name in names]
        self._rank_of_node = {i: servers[name] for i, name in enumerate(names) if name in servers}
        self.window_bytes = window_bytes
        self._estimator = ESTIMATORS[estimator](len(names))
        self._observations: list[deque[Observation]] = [deque(maxlen=WINDOW) for _ in names]
        self._configured: Capacities | None = None
        self._layout: Layout | None = None
        self._slots: dict[tuple[int, SlotClass], list[int]] = {}  # (node, class) -> slot numbers on its server
        self._next_slot = dict.fromkeys(self._rank_of_node, 0)
        self.joint_shares: Floats | None = None  # per node, bytes: what scheme joint asks for
        self._present: Plan | None = None  # None while MXNet routes by itself
        self._shares: deque[Sequence[int]] = deque(maxlen=REMEMBERED)  # of each iteration, the last one's last
        self._measured = False
        self._links_set_pace = True
        self._stuck = self._stuck_left = 0  # iterations that something else sets the pace before all is measured anew
        self._planned = 0  # iterations since all was measured
        self._usual: float | None = None  # the first one's time over its prediction
        self._patience = 1
        self._calm = 0
        self._equal_s: float | None = None  # what equal shares took last
        self._failures = 0  # plans in a row that took longer
        self._equal_left = 0  # iterations of equal shares to come, whatever is measured
        self._reason = ""

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
        """Cut what the workers push; returns the layout's digest. InputError where nothing can be cut."""
        self._layout = build_layout(
            [Tensor(t.name, t.elements, t.dtype, t.group) for t in tensors],
            num_nodes=len(self._nodes),
            num_servers=len(self._rank_of_node),
            alpha_bytes=alpha_bytes,
            fixed_slice_bytes=fixed_slice_bytes,
            num_probe=num_probe,
        )
        self._present = None
        return self._layout.digest()

    def observe(self, samples: Sequence[LinkSample], took_s: float, exposed_s: float = 0.0) -> None:
        """One iteration's samples, and how long it took from first push to last pull.

        exposed_s: of it, after all had computed. Before, links also waited for gradients: so the exchange alone would have
        taken something between the two, and only what lies outside is held against the estimates.
        """
        if not samples:
            return
        traffic = Traffic(samples)
        self._estimator.observe(traffic)
        if self._present is None:
            return
        predicted_s = self._present.predicted_s
        if self._reason in (NOT_MEASURED, NOT_THE_LINKS):
            self._equal_s = took_s
        if predicted_s is None or not self._links_set_pace:
            self._judge_pace(self._present, traffic, exposed_s or took_s)
            self._equal_left = max(0, self._equal_left - 1)
            self._links_set_pace &= self._equal_left == 0
        elif self._equal_s is not None and took_s > WORSE * self._equal_s:
            self._give_up()
        else:
            self._failures = 0
            self._judge_estimates(traffic, min(max(predicted_s, exposed_s or took_s), took_s) / predicted_s)
        end_s: dict[int, float] = {}  # of each server's last message, to it or from it
        for sample in samples:
            server = sample.target if sample.is_push else sample.source
            end_s[server] = max(sample.end_s, end_s.get(server, sample.end_s))
        for server, last_s in end_s.items():
            if last_s > traffic.first_s:
                served = Observation(self._present.shares_bytes[server], last_s - traffic.first_s)
                self._observations[server].append(served)

    def exceeds_plan(self, samples: Sequence[LinkSample], is_server: bool, iterations: int) -> bool:
        """Whether a process says that one peer sent it more than the plans had to send, by far.

        samples: of one receiving process, reported during the last one of so many iterations; those before it may have left
        some. The sender is the second witness: what it had to send is known here. Room is left for headers.
        """
        if self._present is None:
            return False
        received: dict[int, int] = {}
        for sample in samples:
            received[sample.source] = received.get(sample.source, 0) + sample.size_bytes
        room = HEADER_BYTES * len(self._present.server_of_slice)
        lately = [self._shares[-k] for k in range(1, min(iterations + 1, len(self._shares)) + 1)]
        lately *= 1 + (len(lately) == 1)  # the first iteration may bring what came before it, without a plan

        def most_bytes(source: int) -> int:
            holder = samples[0].target if is_server else source
            return sum(shares[holder] + room for shares in lately)

        return any(size_bytes > most_bytes(source) for source, size_bytes in received.items())

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
            return took_s <= PACE * completion_s(self._nodes, shares, sum(present.shares_bytes), capacities)

        self._links_set_pace = fits() or (self._estimator.find_capped_pair(traffic) and fits())
        if self._links_set_pace:
            self._stuck = self._stuck_left = 0
        elif self._stuck_left:
            self._stuck_left -= 1
        else:
            self._stuck = self._stuck_left = min(max(1, 2 * self._stuck), MAX_PATIENCE)
            self._estimator.forget()

    def _judge_estimates(self, traffic: Traffic, ratio: float) -> None:
        """Whether the estimates still explain what iterations take; if not, a pair is capped, or all is measured anew.

        Where measuring does not help (the scheme does not see the reason), it is tried again after twice as many iterations.
        """
        self._planned += 1
        surprising = not 1 / SURPRISE < ratio < SURPRISE
        just_measured = self._planned == 1  # so it is not the nodes
        if ratio > LATE and (just_measured or not surprising) and self._estimator.find_capped_pair(traffic):
            return
        changed = self._usual is not None and not 1 / SURPRISE < ratio / self._usual < SURPRISE
        self._usual = self._usual or ratio
        if not (surprising or changed or self._would_gain()):
            self._calm += 1
            if self._calm >= CALM:
                self._patience = 1
            return
        self._calm = 0
        if changed or self._planned >= self._patience:
            self._patience = min(2 * self._patience, MAX_PATIENCE)
            self._planned, self._usual = 0, None
            self._estimator.forget()

    def _would_gain(self) -> bool:
        """Whether nodes that have outgrown their estimates could make iterations shorter, each by what is known of it."""
        outgrown, capacities = self._estimator.outgrown, self._capacities()
        if capacities is None or not outgrown.any():
            return False
        up, down = np.where(outgrown, DIFFERENT, 1.0) * np.array([capacities.up, capacities.down])
        raised = Capacities(up, down, capacities.pairs)
        times_s = [bound_s(self._nodes, self.layout.model_bytes, one) for one in (raised, capacities)]
        return times_s[0] < WORTH * times_s[1]

    def _give_up(self) -> None:
        """Back to equal shares: for the one iteration that measures anew, and each time in a row for twice as many.

        So reports that are false, by mistake or on purpose, cost one iteration of many: no more than equal shares would.
        """
        self._estimator.forget()
        self._planned, self._usual, self._calm = 0, None, 0
        self._equal_left = min(2**self._failures, MAX_PATIENCE)
        self._failures += 1

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
            self._present, self._reason = None, f"{scheme}: MXNet's own routing"
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
        self._shares.append(self._present.shares_bytes)
        slots, new_slots = self._place(self._present)
        ranks = [self._rank_of_node[node] for node in self._present.server_of_slice]
        return Decision(m.Plan(iteration, epoch, scheme, self._measured, self._window(), ranks, slots), new_slots)

    def _window(self) -> int:
        """Bytes of a worker under way at a time: enough for the links' delay and queues, little enough to keep all in step."""
        assert self._layout is not None
        if self.window_bytes is not None:
            return self.window_bytes
        assert self._present is not None
        if self._present.scheme == "elastic":  # learns from how long each server takes: a window keeps them in step
            return 0
        if not self._estimator.estimate().complete:  # nodes in step hide what they could do: let them run
            return 0
        return usual_window_bytes(self._layout.model_bytes)

    def _place(self, plan: Plan) -> tuple[list[int], list[m.NewSlots]]:
        """The slot number of each slice: the k-th of its class on its server; missing ones are numbered and returned."""
        assert self._layout is not None
        slots, new = [], []
        for node, wanted, piece in zip(plan.server_of_slice, plan.slot_of_slice, self._layout.slices, strict=True):
            have = self._slots.setdefault((node, (piece.dtype, piece.elements)), [])
            while wanted >= len(have):
                number = self._next_slot[node]
                self._next_slot[node] = number + 1
                have.append(number)
                new.append(m.NewSlots(self._rank_of_node[node], number, 1, piece.elements, piece.dtype))
            slots.append(have[wanted])
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

    def describe_iteration(self, samples: Sequence[LinkSample]) -> dict[str, Any]:
        """What the iteration was planned on and what it measured; rates in bytes per second."""
        assert self._layout is not None
        model = self._layout.model_bytes
        slots = sum(self._next_slot.values())
        told: dict[str, Any] = {"measured": self._measured, "slots": slots, **self.describe_plan()}
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
        if samples:
            told["span_s"] = max(s.end_s for s in samples) - min(s.start_s for s in samples)
        return told

    def _by_name(self, values: Floats) -> dict[str, float | None]:
        return {name: float(v) if np.isfinite(v) else None for name, v in zip(self._names, values, strict=True)}
