"""The precisions of a job's exchanges: those that its options ask for, or those that pay, by what is known of its links. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from nalb.feedback.change import ChangeDebt
from nalb.planning.nodes import Floats, Node
from nalb.planning.precisions import AUTO_PRECISION, STEPS, IterationPace, PrecisionModel, Precisions
from nalb.planning.slices import Tensor
from nalb.services.exchange.knowledge import Known


@dataclass(frozen=True, eq=False)
class ChosenPrecisions:
    """Precisions, and what they are worth."""

    precisions: Precisions
    worth_s: Floats | None = None  # see PrecisionModel.worth_s; None: the job's options ask for them


class PrecisionChoice:
    """The precisions that the next plan has.

    A change costs about one iteration: tensors are cut anew, and their first iteration has equal shares. So `auto` makes it once
    the present precisions have cost as much as one iteration.
    """

    def __init__(self, nodes: Sequence[Node], precision: str):
        """precision: the option's value."""
        self._is_auto, self._debt = precision == AUTO_PRECISION, ChangeDebt()
        self.wanted = ChosenPrecisions(Precisions.all_in(STEPS[0] if self._is_auto else precision, nodes))

    def consider(self, known: Known, tensors: Sequence[Tensor], pace: IterationPace) -> None:
        """Take in what is known after one more iteration by plan."""
        capacities = known.capacities
        if not self._is_auto or capacities is None:
            return
        model = PrecisionModel(known.nodes.nodes, tensors, capacities, pace)
        best, present = model.choose(), self.wanted.precisions
        if self._debt.is_due(
            model.priced_s(present) - model.priced_s(best), pace.iteration_s(model.exchange_s(present))
        ):
            self.wanted = ChosenPrecisions(best, model.worth_s(best))
