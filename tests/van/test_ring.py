"""The ring of samples under threads, by itself."""

import subprocess
from pathlib import Path

import pytest

from tests.van.conftest import SOURCES, compile_c, require_compiler


@pytest.mark.parametrize("flags", [("-O2",), ("-O1", "-fsanitize=thread")], ids=["plain", "thread-sanitizer"])
def test_every_sample_is_taken_once_or_counted_as_dropped(flags: tuple[str, ...], tmp_path: Path) -> None:
    require_compiler()
    program = tmp_path / "ring"
    compile_c(program, *flags, SOURCES / "ring_threads.c", "-pthread")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer cannot run with this kernel's address space layout")
    assert (done.returncode, done.stderr) == (0, "")
