"""The shim with keys: the same messages as without, and nothing at all where a key, a file or the ZAP handler is not right."""

import os
import subprocess
from pathlib import Path

import pytest

from nalb.errors import InputError
from nalb.transport.keys import load_keys, make_keys, write_keys
from tests.shim.conftest import SCENARIO_LIMIT_S, Build

pytestmark = pytest.mark.jobs

HERE = {"n0": "127.0.0.1", "n1": "10.0.0.1"}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """Keys of n0, where the scenarios run."""
    write_keys(tmp_path / "keys", make_keys(HERE))
    return tmp_path / "keys" / "n0.keys"


@pytest.mark.parametrize("scenario", ["exchange", "many_peers", "hostile", "threads", "churn", "ends", "interleaved"])
def test_the_same_messages_as_without_keys(build: Build, key_file: Path, scenario: str) -> None:
    plain, encrypted = build.run(scenario), build.run(scenario, NALB_KEYS=str(key_file))
    assert encrypted.lines == plain.lines
    assert encrypted.counters["bytes_sent"] == plain.counters["bytes_sent"]
    refused = "handshakes_refused"
    assert plain.counters["handshakes_allowed"] == plain.counters[refused] == encrypted.counters[refused] == 0
    if scenario not in ("churn", "ends"):  # which close before anyone has shaken hands
        assert encrypted.counters["handshakes_allowed"] > 0


@pytest.mark.parametrize(("scenario", "sees"), [("guarded", "opened"), ("unguarded", "refused")])
def test_without_a_handler_the_door_stays_shut(build: Build, key_file: Path, scenario: str, sees: str) -> None:
    assert build.run(scenario).lines == ["opened"]
    assert build.run(scenario, NALB_KEYS=str(key_file)).lines == [sees]


def run_refused(build: Build, scenario: str, path: str) -> tuple[str, str]:
    """(output, complaint) of a scenario whose key file cannot serve."""
    environment = {
        "PATH": os.environ["PATH"],
        "LD_PRELOAD": " ".join((*build.preload_first, str(build.shim))),
        "NALB_SHIM_CALLER": "libdriver.so",
        "NALB_KEYS": path,
    }
    done = subprocess.run(
        [build.folder / "launcher", build.folder / "libdriver.so", scenario],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SCENARIO_LIMIT_S,
        check=False,
    )
    return done.stdout, done.stderr


def test_other_addresses_and_transports_are_refused(build: Build, key_file: Path) -> None:
    out, complaint = run_refused(build, "elsewhere", str(key_file))
    assert out.splitlines()[:2] == ["connect Permission denied", "bind Protocol not supported"]
    assert complaint.splitlines() == [
        f"nalb: no key for tcp://127.0.0.77:9 in {key_file}: make keys for the addresses that the job uses"
    ]


DAMAGES = {  # name: what becomes of a right file's lines
    "empty": lambda lines: lines[:0],
    "another version": lambda lines: ["nalb keys 2", *lines[1:]],
    "no node": lambda lines: [lines[0], *lines[2:]],
    "two nodes": lambda lines: [*lines[:2], *lines[1:]],
    "no peers": lambda lines: lines[:2],
    "short key": lambda lines: [lines[0], lines[1][:-1], *lines[2:]],
    "long key": lambda lines: [lines[0], lines[1] + "0", *lines[2:]],
    "capital digits": lambda lines: [lines[0], *(line.replace(line[-64:], line[-64:].upper()) for line in lines[1:])],
    "no hexadecimal": lambda lines: [*lines[:-1], lines[-1][:-1] + "g"],
    "a word more": lambda lines: [*lines, "peer n2 10.0.0.2 " + "0" * 64 + " more"],
    "a word less": lambda lines: [*lines, "peer n2 " + "0" * 64],
    "unknown kind": lambda lines: [*lines, "poor n2 10.0.0.2 " + "0" * 64],
    "long address": lambda lines: [*lines, f"peer n2 {'a' * 64} " + "0" * 64],
    "long line": lambda lines: [*lines, "peer n2 10.0.0.2 " + "0" * 5000],
    "empty line": lambda lines: [*lines, ""],
    "too many peers": lambda lines: [*lines, *(f"peer m{i} 10.1.{i // 256}.{i % 256} " + "0" * 64 for i in range(2048))],
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_both_readers_refuse_a_damaged_file(sanitized: Build, key_file: Path, damage: str) -> None:
    lines = key_file.read_text().splitlines()
    key_file.write_text("".join(f"{line}\n" for line in DAMAGES[damage](lines)))
    out, complaint = run_refused(sanitized, "exchange", str(key_file))
    assert out == ""
    assert complaint.startswith(f"nalb: NALB_KEYS: {key_file} is "), complaint
    with pytest.raises(InputError, match="make keys"):
        load_keys(key_file)


def test_both_readers_refuse_a_file_that_is_not_private(plain: Build, key_file: Path) -> None:
    key_file.chmod(0o640)
    out, complaint = run_refused(plain, "exchange", str(key_file))
    assert (out, complaint.splitlines()[0]) == ("", f"nalb: NALB_KEYS: {key_file} can be read by others: chmod 600 it")
    with pytest.raises(InputError, match="mode 640"):
        load_keys(key_file)


@pytest.mark.parametrize("path", ["", "/nowhere/n0.keys", "/"])
def test_both_readers_refuse_what_is_no_file(plain: Build, path: str) -> None:
    out, complaint = run_refused(plain, "exchange", path)
    assert out == ""
    assert complaint.startswith("nalb: NALB_KEYS: ")
    with pytest.raises(InputError):
        load_keys(path)
