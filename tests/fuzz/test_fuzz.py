"""A little of what `tests/campaigns/fuzz.py` does with a million inputs each, so that no target rots; and what it found."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.errors import InputError, PeerError
from nalb.launch.hosts import load_hosts
from nalb.services import composition
from tests.campaigns import fuzz
from tests.campaigns.soak import grown
from tests.fuzz.targets import TARGETS, steps

pytestmark = pytest.mark.jobs

SCRIPT = Path(__file__).parents[2] / "tests" / "campaigns" / "fuzz.py"
INPUTS = {"control": 20_000, "coordinator": 3_000}


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_is_more_than_an_error_of_ours(target, tmp_path):
    step = steps(target, 2, tmp_path)
    for _ in range(INPUTS.get(target, 2_000)):
        step()
    if target == "coordinator":
        attack = step.__self__
        assert attack.jobs > 40
        assert attack.iterations > 2 * attack.jobs  # plans that somebody got: it is not dead jobs that are talked to
        assert attack.tokens > attack.jobs / 4  # four in ten jobs deal some, unless they die before


def test_the_shim_under_sanitizers():
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: the shim's fuzzer cannot be built")
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(runtime.stdout.strip()).is_absolute():
        pytest.skip("gcc has no AddressSanitizer runtime")
    done = subprocess.run(
        [sys.executable, SCRIPT, "shim", "--inputs", "20000"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("shim: 20000 inputs")


@pytest.mark.parametrize(("leaked", "exit_code"), [(0, 0), (200, 1)])
def test_a_target_that_leaks_ends_with_exit_code_1(monkeypatch, capsys, leaked, exit_code):
    kept = []
    monkeypatch.setattr(fuzz, "steps", lambda *_: lambda: kept.append(bytes(leaked)))
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "keys", "--inputs", "200000"])
    assert fuzz.main() == exit_code
    assert ("a leak, since more than 11.2 MB" in capsys.readouterr().out) == bool(exit_code)


def test_a_process_that_grows_with_every_iteration_is_named():
    early = {"server n0": 198.0, "worker n0": 203.8}
    assert grown(early, {"server n0": 198.9, "worker n0": 205.0}, 1600) == []
    (line,) = grown(early, {"server n0": 198.9, "worker n0": 203.8 + 1600 * 0.004}, 1600)
    assert line == "worker n0 grew 6.4 MB in 1600 iterations, more than 5.6"


def test_text_that_is_not_utf8_is_the_peers_error():
    """A stranger's frame ended the coordinator, and so the job."""
    with pytest.raises(PeerError, match="x sent"):
        composition.decode_at_coordinator(b"\x82\xa4type\xa6Failed\xa6reason\xa1\x82", "x")


def test_nesting_beyond_the_parser_is_an_input_error(tmp_path):
    path = tmp_path / "hosts.toml"
    path.write_text("a = " + "[" * 2000)
    with pytest.raises(InputError, match="not TOML"):
        load_hosts(path)


def test_an_address_that_no_name_can_be_is_an_input_error(tmp_path):
    path = tmp_path / "hosts.toml"
    path.write_text('[[hosts]]\nname = "n1"\naddress = "192..0.2.1"\n')
    with pytest.raises(InputError, match=r"hosts\[0\].address"):
        load_hosts(path)
