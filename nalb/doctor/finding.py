"""The result of a check of the machine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One line of `nalb doctor`."""

    name: str  # what was looked at
    verdict: Verdict  # warn: a job runs, but lacks something; FAIL: no job runs, or none in an emulated network
    detail: str  # what was found
    advice: str = ""  # what to do; empty where nothing is to be done
    is_of_emulation: bool = False  # whether only jobs in an emulated network need it


Check = Callable[[], list[Finding]]


def one_line(text: str, longest: int = 300) -> str:
    """The last line that a failed program printed, of at most `longest` characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:longest] if lines else "it said nothing"
