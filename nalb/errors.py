"""Every error that nalb raises on purpose. A message says what was wrong, where, and what to do.

NalbError                 the command prints the message in one line and exits with `exit_code`
|- InputError             a file, flag or value of the user's is wrong (names file and field)
|- MachineError           this machine lacks something (root, a qdisc, a wheel, a port)
|- PeerError              another process broke the protocol or went silent (names the peer)
|- StoreError             the KVStore was used in a way that it does not support
|- CheckpointError       a checkpoint cannot be written, or does not fit the training (names file or folder)
|- JobError               a process of the job failed (names it; carries its exit code; JobFailed in failures.py says why as data)
"""

import errno
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

SURE = 0.85  # part of the letters of two words that are alike where one is the other, misspelt. Choice.
NAMED = 10  # most names of nodes, keys and the like in one message; a job may have a thousand


class NalbError(Exception):
    """Base of the tree. The command line catches it, and prints it in one line."""

    exit_code = 1


class InputError(NalbError):
    """A file, flag or value that the user gave is wrong."""

    exit_code = 2


class MachineError(NalbError):
    """This machine cannot do what was asked."""

    exit_code = 3


class PeerError(NalbError):
    """Another process of the job broke the protocol or went silent."""

    exit_code = 4


class StoreError(NalbError):
    """The KVStore was used in a way that it does not support."""

    exit_code = 5


class CheckpointError(NalbError):
    """A checkpoint cannot be written, or does not fit the training."""

    exit_code = 6

    def __init__(self, message: str, writing: int | None = None):
        """message: one line. writing: the iteration whose checkpoint could not be written."""
        super().__init__(message)
        self.writing = writing


class JobError(NalbError):
    """A process of the job failed."""

    def __init__(self, message: str, exit_code: int = 1):
        """message: one line. exit_code: of the process; 1 in place of 0."""
        super().__init__(message)
        self.exit_code = exit_code or 1


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """The first `most` names, and how many more there are, as words of a message."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known word that a wrong one looks like, as words of a message; empty where none does."""
    near = get_close_matches(word.lower(), list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def misspelt(word: str, known: Sequence[str]) -> str | None:
    """The known word that this one surely stands for, as a letter or two are wrong; None where there is none.

    A known word with others behind it is a name of its own, such as COORDINATOR_PORT, which Kubernetes sets for a service.
    """
    near = [] if any(word.startswith(f"{one}_") for one in known) else get_close_matches(word, known, n=1, cutoff=SURE)
    return near[0] if near else None


def as_text(words: str) -> str:
    """Words that need not be UTF-8, such as names of files, with a question mark for each byte that is not."""
    return words.encode("utf-8", "replace").decode()


def printable(words: str) -> str:
    """The words with a ? for each character that is no text, as those that steer a terminal, and a blank for each line's end."""
    return "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in words)


def is_full(error: OSError) -> bool:
    """Whether a disk or a quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def one_line(error: BaseException) -> str:
    """The error's type and the first line of its message, without the trace of C++ that MXNet puts before the message.

    A first line that ends with a colon is followed by the next one, as in PyTorch's errors of load_state_dict. Where PyTorch
    repeats an error of another process, such as a DataLoader's, that error's own last line comes first. An error whose text cannot
    be made has none.
    """
    try:
        told = as_text(str(error))
    except Exception:  # it cannot say what it is
        told = ""
    lines = [line for line in told.splitlines() if line.strip() and not line.startswith(("Traceback (", "  File "))]
    name, text = type(error).__name__, lines[0] if lines else ""
    if any(line.startswith("Original Traceback (") for line in lines):
        return f"{lines[-1].strip()} ({text.rstrip('.')})"
    if text.endswith(":") and len(lines) > 1:
        text = f"{text} {lines[1].strip()}"
    if not text:
        return name
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"
