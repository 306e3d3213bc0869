"""How a process of a job ends at once."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("stream", ["None", "open(__file__)", "object()"])
def test_a_process_ends_whatever_the_script_has_made_of_its_output(tmp_path, stream):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nfrom nalb.process.die import die\nsys.stdout = sys.stderr = one = {stream}\n"
        "getattr(one, 'close', int)()\ndie('a test')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 4, done.stderr
