"""Sums within sites first, then between them, by real processes on loopback."""

import re
from pathlib import Path

import pytest

from nalb.errors import PeerError
from nalb.events import IterationEvent
from nalb.failures import Cause
from nalb.reporting.run_file import read_events
from tests.failures import noted_in
from tests.kvstore.test_store import run_job

HERE = Path(__file__).parent
pytestmark = pytest.mark.mxnet


def test_all_workers_get_the_same_bits(tmp_path):
    nodes = "2+1+3"
    done = run_job(tmp_path, str(HERE / "same_bits.py"), nodes=nodes, timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    digests = re.findall(r"digest (\w+)", done.stdout)
    assert len(digests) == sum(map(int, nodes.split("+")))
    assert len(set(digests)) == 1
    events = [event for event in read_events(tmp_path / "run") if isinstance(event, IterationEvent)]
    assert not any(event.rejected or event.drops for event in events)
    logs = sorted(path.name for path in (tmp_path / "run" / "logs").iterdir())
    sites = [int(count) for count in nodes.split("+")]
    assert sum("site-server" in name for name in logs) == sum(count for count in sites if count > 1)
    assert sum("global-server" in name for name in logs) == sum(sites)


def test_wrong_sums_are_found(tmp_path):
    """A server of the first site sums something else than what was pushed."""
    done = run_job(tmp_path, str(HERE / "verified.py"), "push", nodes="2+2", flags=("--verify-sums",), timeout_s=240)
    assert done.returncode == PeerError.exit_code, done.stdout + done.stderr
    failure = noted_in(tmp_path / "run")
    assert failure.cause is Cause.WRONG_SUM, done.stderr
    assert failure.iteration in (2, 3, 4)
    assert "led by " in failure.detail
