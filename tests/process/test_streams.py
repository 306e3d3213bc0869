"""What becomes of standard output."""

import subprocess
import sys


def test_what_a_terminal_cannot_show_is_replaced() -> None:
    code = "from nalb.process.streams import open_output\nopen_output()\nprint('n0 \\u2265 5')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONIOENCODING": "iso8859-1"}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"n0 ? 5\n"), done.stderr
