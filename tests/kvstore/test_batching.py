"""Unequal, changing batches on real jobs: every step is the union batch's, to 1e-6, and no sample is lost or doubled."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.batching.lbb import RAPID
from nalb.events import BatchEvent
from nalb.failures import Cause, Phase
from nalb.reporting.run_file import read_events
from nalb.services.batching.sizer import WARM_UP
from tests.failures import noted_in
from tests.kvstore.test_store import run_job

WORKERS = Path(__file__).parent / "batching_workers.py"
pytestmark = pytest.mark.mxnet
TOTAL, SAMPLES = 32, 50


def drawn_by_rank(output):
    rows = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"drawn"' in line]
    return [row["drawn"] for row in sorted(rows, key=lambda row: row["rank"])]


@pytest.mark.parametrize(
    ("scheme", "update", "batching", "more"),
    [
        ("aware", "worker", "lb-bsp", ()),
        ("stock", "server", "lb-bsp", ()),
        ("stock", "worker", "static", ("--encrypt",)),
    ],
)
def test_steps_are_the_union_batchs(tmp_path, scheme, update, batching, more):
    flags = ("--scheme", scheme, "--batching", batching, *more)
    done = run_job(tmp_path, str(WORKERS), "nalb", update, nodes=3, flags=flags)
    assert done.returncode == 0, done.stdout + done.stderr
    drawn = drawn_by_rank(done.stdout)
    sizes = [[len(chosen) for chosen in row] for row in zip(*drawn, strict=True)]
    assert {sum(row) for row in sizes} == {TOTAL}
    assert sizes[0] == [20, 8, 4]
    assert len({tuple(row) for row in sizes}) > 1, "batch sizes never changed"
    stream = [sample for row in zip(*drawn, strict=True) for chosen in row for sample in chosen]
    for epoch in range(len(stream) // SAMPLES):
        assert sorted(stream[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))
    events = [event for event in read_events(tmp_path / "run") if isinstance(event, BatchEvent)]
    assert [event.sizes for event in events] == sizes[: len(events)]
    assert len(events) >= len(sizes) - 1


@pytest.mark.parametrize(("scheme", "update"), [("aware", "worker"), ("stock", "server"), ("stock", "worker")])
def test_without_batching_unequal_sizes_stay_and_steps_are_the_union_batchs(tmp_path, scheme, update):
    done = run_job(tmp_path, str(WORKERS), "nalb", update, nodes=3, flags=("--scheme", scheme))
    assert done.returncode == 0, done.stdout + done.stderr
    drawn = drawn_by_rank(done.stdout)
    assert {tuple(len(chosen) for chosen in row) for row in zip(*drawn, strict=True)} == {(20, 8, 4)}
    stream = [sample for row in zip(*drawn, strict=True) for chosen in row for sample in chosen]
    assert sorted(stream[:SAMPLES]) == list(range(SAMPLES))


def test_dist_async_refuses_unequal_sizes(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "dist_async", "server", flags=("--scheme", "stock"))
    assert done.returncode != 0
    assert "batch_size: 16 samples in all here and 40 on rank 0" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("store", "flags"),
    [("nalb", ()), ("nalb", ("--batching", "lb-bsp")), ("nalb", ("--scheme", "stock", "--batching", "lb-bsp"))],
)
def test_unequal_sizes_are_refused_where_workers_are_left_out(tmp_path, monkeypatch, store, flags):
    monkeypatch.setenv("NALB_FIRST_WORKERS", "3")
    done = run_job(tmp_path, str(WORKERS), store, "worker", flags=flags)
    assert done.returncode != 0
    assert "batch_size differs between workers (8, 20)" in done.stdout + done.stderr


@pytest.mark.parametrize("script", ["partition_cases.py", "clock_cases.py"])
def test_what_needs_no_job(script):
    script = str(Path(__file__).parent / script)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_lbb_begins_by_profiles_and_tunes_a_disturbance_away(tmp_path):
    """Disturbed from the first iteration that it sees: a chance delay before that would keep it from tuning rapidly for long."""
    script = Path(__file__).parent / "lbb_workers.py"
    done = run_job(tmp_path, str(script), "30", str(WARM_UP), "300", flags=("--batching", "lbb"))
    assert done.returncode == 0, done.stdout + done.stderr
    events = [event for event in read_events(tmp_path / "run") if isinstance(event, BatchEvent)]
    assert events[0].sizes[0] > 65, "twice as fast by its profile, rank 0 is given about 80 of 120 at once"
    assert RAPID in [event.reason for event in events[WARM_UP:]]
    assert events[-1].sizes[0] < 65


@pytest.mark.parametrize("scheme", ["exact", "stock"])
def test_a_worker_that_ends_first_has_reported_all_its_steps(tmp_path, scheme):
    script = Path(__file__).parent / "late_report_workers.py"
    done = run_job(tmp_path, str(script), "6", flags=("--scheme", scheme, "--batching", "lbb"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_worker_that_exits_is_named_with_mxnets_own_store_too(tmp_path):
    flags = ("--scheme", "stock", "--batching", "lb-bsp")
    done = run_job(tmp_path, str(WORKERS), "nalb", "worker", "exit", flags=flags)
    assert done.returncode == 3, done.stdout + done.stderr
    failure = noted_in(tmp_path / "run")
    assert (failure.cause, failure.role) == (Cause.ENDED, "worker")


def test_a_script_that_does_not_join_is_told(tmp_path):
    """In its first iteration, and once: this replay has no end."""
    done = run_job(tmp_path, "-m", "kvstore_patch.roles.replay", "mobilenet", flags=("--batching", "lb-bsp"))
    assert done.returncode != 0
    assert "trained without joining the batching" in done.stdout + done.stderr
    assert sum("trained without joining" in line for line in (done.stdout + done.stderr).splitlines()) == 1
    failure = noted_in(tmp_path / "run")
    assert (failure.cause, failure.phase, failure.role) == (Cause.BATCHING, Phase.INIT, "worker")
