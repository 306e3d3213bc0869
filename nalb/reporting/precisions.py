"""Says in which precisions gradients travelled, node by node, and what that saved."""

from collections.abc import Mapping

from nalb.errors import listed
from nalb.events import IterationEvent, Rounded
from nalb.planning.explanation import push_reason
from nalb.planning.precisions import STEPS
from nalb.reporting.record import Step


def precision_lines(steps: Mapping[str, list[Step]]) -> list[str]:
    """Sentences on the last precisions of each scheme whose gradients were rounded."""
    lines = []
    for scheme, its in steps.items():
        told = next((step.event for step in reversed(its) if step.event.shares), None)
        if told is not None and told.rounded is not None:
            lines += [f"{scheme}: {line}" for line in _lines(told, told.rounded)]
    return lines


def _lines(event: IterationEvent, rounded: Rounded) -> list[str]:
    by_precision: dict[str, list[str]] = {}
    for node, precision in rounded.pushes.items():
        by_precision.setdefault(precision, []).append(node)
    pushes = "; ".join(f"{listed(nodes)} {precision}" for precision, nodes in by_precision.items())
    lines = [f"all sums are answered in {rounded.answers}, since all ranks need the same bits. Pushes: {pushes}."]
    saved = {node: value for node, value in rounded.saved_bytes.items() if value is not None}
    if saved:
        each = ", ".join(f"{node} {value / 1e6:.1f}" for node, value in saved.items())
        lines.append(f"an iteration carries fewer MB than with {STEPS[0]}, out and in: {each}.")
    if event.bound_s is not None and rounded.whole_bound_s is not None:
        lines.append(f"bound {event.bound_s:.3f} s; with {STEPS[0]} alone {rounded.whole_bound_s:.3f} s.")
    if rounded.worth_s:
        reasons = [
            push_reason(node, one, rounded.worth_s.get(node) or 0.0)
            for node, one in rounded.pushes.items()
            if one != STEPS[0]
        ]
        if whole := by_precision.get(STEPS[0]):
            reasons.append(f"fewer bytes of {listed(whole)} would save too little")
        lines.append(f"why: {'; '.join(reasons)}.")
    return lines
