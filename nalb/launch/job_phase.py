"""In which phase a job was when it failed, by what its coordinator has noted: it writes each event as it happens."""

import json
from contextlib import suppress
from pathlib import Path

FIRST_BYTES = 65_536  # of the file: 'ready' stands there
LAST_BYTES = 4_000_000  # some iterations, whatever their samples


def have_met(samples: Path) -> bool:
    """Whether the coordinator has noted that all processes are there."""
    with suppress(FileNotFoundError), open(samples, "rb") as file:
        return b'{"event":"ready"' in file.read(FIRST_BYTES)  # after days the whole may be more than memory holds
    return False


def phase_of(samples: Path) -> str:
    """'phase start' (not all processes have met), 'phase init' (no plan yet), 'iteration 3' (its plan is out), 'phase plan of
    iteration 4'; '' where no coordinator writes such a file.
    """
    try:
        with open(samples, "rb") as file:
            file.seek(max(0, samples.stat().st_size - LAST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        for kind, words in ((b"plan", "iteration {}"), (b"iteration", "phase plan of iteration {}")):
            if line.startswith(b'{"event":"%s",' % kind):
                with suppress(ValueError):  # half a line: the coordinator was killed, or its disk is full
                    return words.format(json.loads(line)["iteration"] + (kind == b"iteration"))
    return "phase init" if any(line.startswith(b'{"event":"ready"') for line in lines) else "phase start"
