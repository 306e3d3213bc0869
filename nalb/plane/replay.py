"""`python -P -m nalb.plane.replay MODEL`: a rank that sums a model's gradients, and does not compute them.

A sleep of the given length stands for computing; then all gradients are ready at once, in buckets as DDP makes them. So nothing
overlaps: the worst case for communication. torch is not needed. The rank runs until the coordinator says Finish (`nalb compare`),
or for --iterations. Its environment is what torchrun sets, RANK and WORLD_SIZE, and what tells it of the others: NALB_AGENTS and
NALB_COORDINATOR. Its job has no ring, so its coordinator must run with --no-ring.
"""

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from nalb.errors import InputError, JobError, NalbError
from nalb.failures import Cause, Failure, JobFailed
from nalb.plane import orders
from nalb.plane.front import Front, JobFinished, PlaneSum
from nalb.plane.rendezvous import told_agents
from nalb.process.last_words import die
from nalb.settings import for_agents
from nalb.workloads import TensorShape, load, replay_arguments

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20  # DDP's, which begins with the last tensors

Values = npt.NDArray[np.float32]


def buckets(tensors: Sequence[TensorShape]) -> list[int]:
    """Elements of each bucket, in the order in which a backward pass fills them."""
    filled, limit_bytes = [0], FIRST_BUCKET_BYTES
    for tensor in reversed(tensors):
        filled[-1] += tensor.elements
        if 4 * filled[-1] >= limit_bytes:
            filled.append(0)
            limit_bytes = BUCKET_BYTES
    return [elements for elements in filled if elements]


def begin(values: Values, way: PlaneSum) -> "Future[None]":
    """Begin a bucket's sum, which a thread of the front's copies back as it comes."""
    over: Future[None] = Future()
    way.begin(
        lambda start, stop: np.copyto(values[start:stop], way.memory[start:stop]),
        lambda error: over.set_exception(error) if error else over.set_result(None),
    )
    way.write(lambda start, stop: np.copyto(way.memory[start:stop], values[start:stop]))
    return over


def join(environ: Any) -> tuple[Front, int, int]:
    """Start this rank's agent and join the job; returns the front, the rank and the number of ranks. Raises NalbError."""
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise InputError("environment variables RANK and WORLD_SIZE: give this rank and the number of all") from None
    agents, coordinator = told_agents(environ, size), environ.get("NALB_COORDINATOR")
    if agents is None or not coordinator:
        raise InputError("environment variables NALB_AGENTS and NALB_COORDINATOR: start replays by `nalb compare`")
    node = environ.get("NALB_NODE") or f"n{rank}"
    settings = for_agents(environ, node=node, endpoint=f"tcp://{coordinator}", size=size, role="agent")
    start = orders.Start(rank, size, node, agents[rank][0], starts_coordinator=False)
    front = Front(start, settings.startup_s, settings.silence_s)
    front.join([f"tcp://{host}:{port}" for host, port in agents], coordinator)
    return front, rank, size


def replay(
    front: Front, all_values: Sequence[Values], compute_s: float, iterations: int, expected: float | None
) -> None:
    """Sum the buckets again and again. expected: what every element of a sum must be; None: sums are not checked.

    iterations: 0 for as many as the coordinator asks for.
    """
    fill = [values[0] for values in all_values]
    done = 0
    while not iterations or done < iterations:
        time.sleep(compute_s)
        ways = [(values, front.place(len(values), "float32")) for values in all_values]
        sums = [begin(values, way) for values, way in ways if isinstance(way, PlaneSum)]
        for one in sums:
            one.result()
        if not sums:  # of no known iteration yet, and nobody sums it
            continue
        done += 1
        if expected is None:
            continue
        for index, (values, first) in enumerate(zip(all_values, fill, strict=True)):
            low, high = float(values.min()), float(values.max())
            if (low, high) != (expected, expected):
                raise JobError(f"wrong sum in bucket {index}: {low}..{high} instead of {expected}")
            values[:] = first


def main() -> int:
    """Run the program."""
    args = replay_arguments("replay a model's gradient traffic on the plane")
    try:
        front, rank, size = join(os.environ)
        fill = rank + 1 if args.verify else 0  # unverified sums are not reset, so any value but 0 would grow
        all_values = [np.full(elements, fill, np.float32) for elements in buckets(load(args.model))]
        expected = size * (size + 1) / 2 if args.verify else None
        try:
            replay(front, all_values, args.compute_ms / 1000, args.iterations, expected)
        except JobFinished:
            pass
        except NalbError as error:
            front.close(Failure(cause=Cause.SCRIPT, detail=str(error)))
            raise
        front.close()
    except JobFailed as error:
        die(error.failure)
    except NalbError as error:
        die(Failure(cause=Cause.PROCESS, detail=str(error)), error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
