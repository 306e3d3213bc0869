"""Writes a run's figures as scalars for TensorBoard, one step for each iteration."""

import time
from collections.abc import Iterator
from pathlib import Path

from tensorboardX import SummaryWriter

from nalb.errors import InputError
from nalb.events import IterationEvent
from nalb.live.following import Follower
from nalb.live.state import LiveState
from nalb.reporting.record import rate

LOOK_S = 1.0  # between two looks at the run


def write(run_dir: Path, log_dir: Path, look_s: float = LOOK_S) -> int:
    """Write what the run has and what it appends, until the job is over; returns the number of iterations. Raises InputError."""
    follower = Follower(run_dir)
    try:
        writer = SummaryWriter(str(log_dir))
    except OSError as error:
        raise InputError(f"--tensorboard {log_dir}: {error.strerror}: choose another") from None
    with writer:
        is_over = False
        while not is_over:
            follower.tell_blindness()
            is_over = follower.is_over(
                time.monotonic()
            )  # asked before the look, so that nothing written by then is missed
            for event in follower.fresh():
                if isinstance(event, IterationEvent):
                    for name, value in scalars(event, follower.state):
                        writer.add_scalar(name, value, follower.state.iterations)
            writer.flush()
            if not is_over:
                time.sleep(look_s)
    return follower.state.iterations


def scalars(event: IterationEvent, state: LiveState) -> Iterator[tuple[str, float]]:
    """(name, value) of an iteration, which the state has taken in. A name's part before / is TensorBoard's section."""
    step = state.last
    assert step is not None, "the state has taken the iteration"
    yield "exchange_s", step.communication_s
    if (least_s := state.least_s()) is not None:
        yield "least_exchange_s", least_s
    for node, value in step.worker_iteration_s.items():
        yield f"iteration_s/{node}", value
    for node, value in state.shares().items():
        yield f"share/{node}", value
    for node in state.nodes:
        for direction in ("up", "down"):
            if (known := rate(event.estimate, direction, node)) is not None:
                yield f"link_bytes_per_s/{node}_{direction}", known
        yield f"resent_packets/{node}", event.resent.get(node, 0)
        yield f"queued_bytes/{node}", event.queued_bytes.get(node, 0)
