"""Chooses the message that a worker obeys next, in whatever order, how late and how often messages come. Pure.

    registration n, Setup(n, layout version e, i)  the worker cuts its tensors; a later version of the same registration replaces it
    Plan(e, k to n)                       the worker sums iterations k to n: of its own version, i first, then one by one

A message of an earlier registration, layout version or iteration is void. A message of a later one waits for those before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nalb.errors import StoreError
from nalb.planning.slices import Layout, Tensor, build_layout
from nalb.protocol import wire
from nalb.services.exchange import messages as m


def layout_by(setup: m.Setup, tensors: Sequence[Tensor], who: str) -> Layout:
    """Cut the registered tensors into the slices that the coordinator expects. Raises StoreError where they differ.

    who: the process that cuts them, in words.
    """
    layout = build_layout(
        tensors,
        num_nodes=setup.num_nodes,
        num_servers=setup.num_servers,
        alpha_bytes=setup.alpha_bytes,
        fixed_slice_bytes=setup.fixed_slice_bytes,
        num_probe=setup.num_probe,
    )
    if layout.digest() != setup.digest:
        raise StoreError(f"{who} cuts the tensors differently from the coordinator: install the same nalb everywhere")
    return layout


@dataclass
class WorkerProtocol:
    """A worker's place in the job. `choose` takes a message out of the inbox; None: what comes next is not there yet."""

    registration: int = -1  # number of the worker's last registration
    layout_version: int = -1  # of the last Setup obeyed
    iteration: int = -1  # the last one chosen, or the one before the Setup's first
    plan: m.Plan | None = None  # the last one obeyed; None: the Setup came after it
    is_registering: bool = False
    _orders: set[tuple[int, int]] = field(default_factory=set)  # of slots: iteration and layout_version

    def register(self, tensors: Sequence[m.TensorSpec], precision: m.Precision = "float32") -> m.Register:
        """Make the message that registers these tensors; until its Setup comes no plan is obeyed."""
        self.registration += 1
        self.is_registering = True
        return m.Register(list(tensors), self.registration, precision)

    def choose(self, inbox: list[wire.Message]) -> m.Setup | m.Plan | m.Finish | None:
        """Take the next message out of the inbox, together with all void ones; the others stay.

        A plan that holds for the next iteration too is given again.
        """
        inbox[:] = [message for message in inbox if not self.is_void(message)]
        setups = [x for x in inbox if isinstance(x, m.Setup) and x.registration == self.registration]
        if setups:
            setup = max(setups, key=lambda one: one.layout_version)
            inbox.remove(setup)
            self.layout_version, self.iteration, self.is_registering = setup.layout_version, setup.iteration - 1, False
            self.plan = None
            return setup
        if self.is_registering:
            return None
        if self.plan is not None and self.iteration < self.plan.until:
            self.iteration += 1
            return self.plan
        of_layout = (x for x in inbox if isinstance(x, m.Plan) and x.layout_version == self.layout_version)
        plan = next((x for x in of_layout if x.iteration == self.iteration + 1), None)
        if plan is not None:
            inbox.remove(plan)
            self.iteration, self.plan = plan.iteration, plan
            return plan
        finish = next((x for x in inbox if isinstance(x, m.Finish)), None)
        if finish is not None:
            inbox.remove(finish)
        return finish

    def is_new_order(self, message: m.PrepareSlots) -> bool:
        """Whether this order is new. PrepareSlots is the one message that is not chosen but obeyed at once."""
        order = (message.iteration, message.layout_version)
        is_new = order not in self._orders
        self._orders.add(order)
        return is_new

    def is_void(self, message: wire.Message) -> bool:
        """Whether a message is of a layout or a plan that no longer holds."""
        if isinstance(message, m.Setup):
            return message.registration < self.registration or message.layout_version <= self.layout_version
        return isinstance(message, m.Plan) and (
            message.layout_version < self.layout_version or message.iteration <= self.iteration
        )
