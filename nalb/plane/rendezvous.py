"""Where the agents of a job are, if a launcher that knows all addresses tells it. Else the front end's own store tells them."""

from collections.abc import Mapping

from nalb.errors import InputError

END = b"end\n"  # what ends a coordinator (coordinator.py) whose job is over
NO_RING = "--no-ring"  # its word for a job without a ring
ALONE = "--alone"  # its word where a launcher starts it, which says nothing: it ends once all ranks have left
AGENTS = "NALB_AGENTS"  # host:port of each rank's agent, by rank, with commas


def told_agents(environ: Mapping[str, str], size: int) -> list[tuple[str, int]] | None:
    """Host and port of each rank's agent; None where nobody has told. Raises InputError."""
    text = environ.get(AGENTS)
    if not text:
        return None
    agents = [(host, port) for host, _, port in (word.strip().rpartition(":") for word in text.split(","))]
    if len(agents) != size or not all(host and port.isdecimal() and 1 <= int(port) <= 65535 for host, port in agents):
        raise InputError(
            f"environment variable {AGENTS}={text!r}: give host:port for each of the {size} ranks, with commas"
        )
    return [(host, int(port)) for host, port in agents]
