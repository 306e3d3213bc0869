"""The ring of samples under threads, by itself."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shim.conftest import SOURCES, compile_c, require_compiler

pytestmark = pytest.mark.jobs

LAYOUT = "unexpected memory mapping"  # in ThreadSanitizer's complaint: the kernel has moved addresses too far


@pytest.mark.parametrize("flags", [("-O2",), ("-O1", "-fsanitize=thread")], ids=["plain", "thread-sanitizer"])
def test_every_sample_is_taken_once_or_counted_as_dropped(flags: tuple[str, ...], tmp_path: Path) -> None:
    require_compiler()
    program = tmp_path / "ring"
    compile_c(program, *flags, SOURCES / "ring_threads.c", "-pthread")
    done = run(program)
    if LAYOUT in done.stderr and shutil.which("setarch"):
        done = run("setarch", "-R", program)  # addresses as ThreadSanitizer expects them, not random ones
    if LAYOUT in done.stderr or done.stderr.startswith("setarch: "):
        pytest.skip("ThreadSanitizer cannot run with this kernel's address space layout, and it cannot be changed")
    assert (done.returncode, done.stderr) == (0, "")


def run(*argv: str | Path) -> "subprocess.CompletedProcess[str]":
    """To its end."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
