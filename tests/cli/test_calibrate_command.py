import os
import subprocess
import sys

import pytest

from nalb.cli.main import run
from nalb.errors import MachineError


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--rounds", "0", "--rounds 0: choose 1 to 1000"),
        ("--rounds", "-1", "--rounds -1: choose 1 to 1000"),
        ("--low", "2e5", "--low 200000 --high 120000: give 0.001 <= low < high <= 1e+12"),
        ("--low", "1e-308", "--low 1e-308 --high 120000: give 0.001 <= low < high <= 1e+12"),
        ("--high", "1e308", "--low 300 --high 1e+308: give 0.001 <= low < high <= 1e+12"),
    ],
)
def test_mistakes_are_refused_before_anything_is_made(tmp_path, capsys, flag, value, says):
    out = tmp_path / "run"
    assert run(["calibrate", flag, value, "--network", "nowhere", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nalb calibrate: ")
    assert line.endswith(says)
    assert not out.exists()


@pytest.mark.mxnet
@pytest.mark.root
def test_a_full_disk_under_stdout_is_told_before_anything_is_measured(tmp_path):
    command = f"{sys.executable} -m nalb.cli.main calibrate --out {tmp_path / 'run'} > /dev/full"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environment)
    says = "nalb calibrate: standard output: No space left on device: make room there\n"
    assert (done.returncode, done.stderr) == (MachineError.exit_code, says)
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize(("flag", "value"), [("--alpha-bytes", "1000"), ("--estimator", "paper")])
def test_what_is_looked_for_is_no_flag(capsys, flag, value):
    assert run(["calibrate", flag, value]) == 2
    assert capsys.readouterr().err.startswith(f"nalb calibrate: '{flag}' is not understood: ")
