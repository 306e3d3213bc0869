"""`python -P -m nalb.plane.coordinator HOST:PORT SIZE NODE [--no-ring] [--alone]`: the coordinator of a job of agents.

Port 0 is a free one. The program writes the port that it has to stdout, and serves until the job is aborted, or stdin says END and
all ranks know that all have left. Nobody reads stdout after the port, and a full pipe would block. So what a user's scheme or
estimator prints goes to stderr. Stdin that ends without END means that whoever started it is dead: it then stays for the job's
deadline, so that it can name the dead process to all others, and ends. With --no-ring the ranks have no ring that it could leave
sums to. With --alone, where a launcher starts it, it writes no port, reads no stdin, and serves until all ranks have left. The
launcher ends it by SIGTERM. An agent's coordinator ignores that, as its agent does (agent.py).
"""

import os
import signal
import sys
import time
from collections.abc import Callable

from nalb.batching.schemes import PREDICTORS
from nalb.batching.speed import Predictor, require_library
from nalb.errors import InputError, NalbError
from nalb.extensions import own_of
from nalb.failures import Cause, Failure, cause_of
from nalb.plane.rendezvous import ALONE, END, NO_RING
from nalb.process.exhaustion import raise_file_limit
from nalb.process.last_words import die
from nalb.services.exchange.planes import AGENTS, AGENTS_WITHOUT_RING
from nalb.settings import Settings, check_agents, for_agents
from nalb.transport.server import CoordinatorThread


def new_predictor(settings: Settings) -> Callable[[int], Predictor] | None:
    """What makes a worker's speed predictor; None where batch sizes need no speeds. Raises InputError."""
    if not settings.predicts_speed:
        return None
    if settings.predictor not in PREDICTORS:
        raise InputError(
            f"predictor {settings.predictor} is a network of MXNet's: choose one of {', '.join(PREDICTORS)}"
        )
    require_library(settings.predictor)
    return PREDICTORS[settings.predictor]


def serve(settings: Settings, has_ring: bool, port_fd: int | None) -> None:
    """Run the coordinator until stdin ends, or until all ranks have left. Raises InputError.

    port_fd: the port is written there; None: the coordinator is alone.
    """
    check_agents(settings)
    schemes, estimators = own_of(settings.scheme, settings.own_schemes, settings.estimator)
    predictor = new_predictor(settings)
    plane = AGENTS if has_ring and settings.keys_path is None else AGENTS_WITHOUT_RING  # a ring is not encrypted
    with CoordinatorThread(settings, predictor, schemes, estimators, plane) as coordinator:
        if port_fd is None:
            coordinator.wait()
            return
        try:
            os.write(port_fd, f"{coordinator.port}\n".encode())
        except BrokenPipeError:  # its agent has ended, and nobody else knows of this port
            return
        if os.read(0, len(END)) == END:
            coordinator.wait()
        else:
            time.sleep(settings.deadline_s)


def stdout_kept() -> int:
    """A descriptor of stdout; what the process prints from here on goes to stderr."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept


def main() -> int:
    """Run the program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training processes get it too, and leave
    raise_file_limit()
    endpoint, size, node, *options = sys.argv[1:]
    port_fd = None if ALONE in options else stdout_kept()
    try:
        settings = for_agents(os.environ, node=node, endpoint=f"tcp://{endpoint}", size=int(size), role="scheduler")
        serve(settings, has_ring=NO_RING not in options, port_fd=port_fd)
    except NalbError as error:
        cause = cause_of(error, Cause.COORDINATOR)
        die(Failure(cause=cause, detail=str(error), role="scheduler", node=node), error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
