"""Shows the present state of a run: as a screen that is drawn again and again, or as a line for each look."""

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nalb.errors import printable
from nalb.live.state import FAILED, OVER, LiveState
from nalb.reporting.pace import Pace
from nalb.reporting.record import rate
from nalb.reporting.step_costs import exposed_s
from nalb.reporting.table import in_cell, seconds
from nalb.units import bytes_per_s_to_mbps, duration

LIMITS = 4  # things that the screen lists of what sets the pace
MOST_NODES = 24  # rows of nodes; a larger job shows the first ones


def line(state: LiveState, iterations: int | None = None) -> str:
    """The state in one line. iterations: how many the run will have; None: not known."""
    return printable("; ".join(_parts(state, state.pace(), iterations)))


def screen(state: LiveState, iterations: int | None = None) -> Group:
    """The state as tables."""
    pace = state.pace()
    head = Panel(Text("\n".join(map(printable, _parts(state, pace, iterations)))), title=state.phase)
    parts: list[RenderableType] = [head, _nodes(state)]
    if pace is not None and pace.limits:
        parts.append(_limits(pace))
    first_s = state.news[-1].at_s if state.news else 0.0
    parts += [Text(f"{happened.at_s - first_s:+8.1f} s  {happened.words}") for happened in state.news]
    return Group(*parts)


def _parts(state: LiveState, pace: Pace | None, iterations: int | None) -> list[str]:
    """What the first lines say."""
    step, again = state.last, f", started again {state.restarts} x" if state.restarts else ""
    if step is None or pace is None:
        told = (
            f"{state.tokens} iteration{'' if state.tokens == 1 else 's'} of tokens"
            if state.tokens
            else f"no iteration of this job yet, {state.iterations} before it"
            if state.iterations
            else "no iteration yet"
        )
        failed = [state.news[-1].words] if state.phase == FAILED and state.news else []
        return [f"{state.phase}{again}; {told}", *failed]
    of = f" of {iterations}" if iterations else ""
    speed = f", {state.rate_per_s:.3g} a second" if state.rate_per_s else ""
    parts = [f"{step.event.scheme}, iteration {state.iterations}{of}{speed}{again}"]
    took_s, least_s = step.communication_s, state.least_s()
    over = f", {took_s / least_s:.2f} x what the links allow" if least_s else ""
    parts.append(f"exchange {seconds(took_s)} s{over}, exposed {seconds(exposed_s(step))} s")
    parts += [pace.sentence] if pace.sentence else []
    left_s = state.left_s(iterations)
    parts += [f"about {duration(left_s)} left"] if left_s is not None and state.phase != OVER else []
    if state.phase == FAILED and state.news:
        parts.append(state.news[-1].words)
    elif state.phase == OVER:
        parts.append(OVER)
    return parts


def _nodes(state: LiveState) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "up Mbit/s", "down Mbit/s", "share", "exchange s", "iteration s"):
        table.add_column(heading, justify="left" if heading == "node" else "right")
    step, shares = state.last, state.shares()
    for node in state.nodes[:MOST_NODES]:
        cells = ["-", "-", "-", "-", "-"]
        if step is not None:
            event = step.event
            cells = [
                *(_rate(state, direction, node) for direction in ("up", "down")),
                f"{shares[node]:.1%}" if node in shares else "-",
                *(
                    seconds(one[node]) if node in one else "-"
                    for one in (event.communication_s, step.worker_iteration_s)
                ),
            ]
        table.add_row(in_cell(node), *cells)
    if len(state.nodes) > MOST_NODES:
        table.add_row(f"and {len(state.nodes) - MOST_NODES} more")
    return table


def _rate(state: LiveState, direction: str, node: str) -> str:
    """The measured rate, or its lower bound."""
    assert state.last is not None, "a rate is of an iteration"
    event = state.last.event
    value, least = rate(event.estimate, direction, node), rate(event.least, direction, node)
    if value is None:
        return "-"
    is_hoped = least is not None and least < 0.999 * value
    return f"{'≥' if is_hoped else ''}{bytes_per_s_to_mbps(least if is_hoped and least else value):.4g}"


def _limits(pace: Pace) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("what an iteration waits for", "needs s", "twice as fast: iteration s"):
        table.add_column(heading, justify="left" if heading.startswith("what") else "right")
    for limit in pace.limits[:LIMITS]:
        table.add_row(in_cell(limit.thing.words), *map(seconds, (limit.takes_s, limit.doubled_s)))
    return table
