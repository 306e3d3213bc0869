"""Tokens in reports and traces: a scripted training's events, as its coordinator writes them."""

import json
import shutil

import pytest

from nalb.cli import main as cli
from nalb.errors import InputError
from nalb.events import encode_line
from nalb.reporting.page import TOKEN_FIGURES
from nalb.reporting.parallel_file import ParallelFile, ParallelResult, write_parallels
from nalb.reporting.record import TokenTimes, read_timeline
from nalb.reporting.token_figures import representative, shape_rows, tokens_over_time, worker_rows
from nalb.reporting.trace import chrome_trace
from tests.reporting.runs import write_fake_run
from tests.reporting.test_trace import spans
from tests.services.tokens.test_dealer import Job, train


@pytest.fixture
def run_dir(tmp_path):
    """Eleven iterations of three workers, the first of which is slow: shapes change at 5 and 10."""
    job = Job()
    train(job, 11, slow=[(0, 8)])
    (tmp_path / "samples.jsonl").write_bytes(b"".join(encode_line(event) for event in job.state.events))
    return tmp_path


def test_the_table_counts_what_each_worker_did(run_dir):
    timeline = read_timeline(run_dir)
    rows = worker_rows(timeline)
    assert [row.worker for row in rows] == ["n0", "n1", "n2"]
    assert sum(row.tokens for row in rows) == sum(len(event.rows) for event in timeline.tokens)
    assert rows[0].tokens < rows[1].tokens
    assert rows[0].helped < rows[1].helped
    assert "n0 (" in rows[1].helped_whom
    for row in rows:
        assert row.fetched_bytes == 1000 * row.tokens
        assert row.compute_s == pytest.approx(0.1 * row.tokens)


def test_the_table_of_shapes_says_how_long_each_took_and_why(run_dir):
    rows = shape_rows(read_timeline(run_dir))
    assert [(row.iteration, row.weights, row.members) for row in rows] == [
        (0, "1, 1, 1", 3),
        (5, "1, 1, 3", 3),
        (10, "1, 3, 3", 3),
    ]
    assert all(row.iteration_s > 0 for row in rows)
    assert rows[1].reason.endswith("case 2 is tried")


def test_the_iteration_drawn_has_the_last_shape_and_a_bar_for_each_token(run_dir):
    timeline = read_timeline(run_dir)
    event = representative(timeline)
    assert event.iteration == 10
    figure = tokens_over_time(timeline)
    bars = figure.axes[0].patches
    assert len(bars) == 3 * len(event.rows)  # two waits, and the computing
    for row in event.rows:
        given_s, inputs_s, start_s, done_s = TokenTimes.of(row)
        assert given_s <= inputs_s <= start_s <= done_s
        assert done_s - start_s == pytest.approx(min(0.1, done_s - inputs_s))
    helped = sum(row.owner != row.worker for row in event.rows)
    assert sum(bar.get_linewidth() == 1.6 for bar in bars) == helped


@pytest.mark.jobs
def test_a_launched_job_has_a_page_of_its_tokens(run_dir, capsys):
    assert cli.run(["report", str(run_dir)]) == 0
    assert "tokens.html" in capsys.readouterr().out
    page = (run_dir / "tokens.html").read_text()
    assert page.count("data:image/png;base64,") == len(TOKEN_FIGURES)
    assert "case 2 is tried" in page
    assert not (run_dir / "report.html").exists()
    assert cli.run(["report", str(run_dir)]) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.jobs
def test_a_comparison_with_tokens_has_both_pages(run_dir, monkeypatch):
    monkeypatch.setattr("nalb.reporting.page.png", lambda _: b"\x89PNG\r\n\x1a\n")
    lines = (run_dir / "samples.jsonl").read_bytes()
    write_fake_run(run_dir)
    with open(run_dir / "samples.jsonl", "ab") as file:
        file.write(lines)
    assert cli.run(["report", str(run_dir)]) == 0
    assert (run_dir / "tokens.html").exists()
    assert (run_dir / "report.html").exists()


@pytest.mark.jobs
def test_each_training_of_a_comparison_has_its_own_page(run_dir, monkeypatch, capsys):
    monkeypatch.setattr("nalb.reporting.page.png", lambda _: b"\x89PNG\r\n\x1a\n")
    whole, ways = run_dir / "whole", ("dp", "fela@exact")
    for way in ways:
        (whole / way).mkdir(parents=True)
        shutil.copy(run_dir / "samples.jsonl", whole / way)
    write_parallels(
        whole, ParallelFile("wan4-static", "train vgg", None, {way: ParallelResult("exact", 8) for way in ways})
    )
    assert cli.run(["report", str(whole)]) == 0
    assert all((whole / way / "tokens.html").exists() for way in ways)
    write_parallels(whole, ParallelFile("wan4-static", "train vgg", None, {"../dp": ParallelResult("exact", 8)}))
    assert cli.run(["report", str(whole)]) == 2
    assert "'../dp' is no name of a training" in capsys.readouterr().err
    assert cli.run(["trace", str(whole)]) == 2
    assert f"has no iterations of its own: give one of {whole / 'dp'}" in capsys.readouterr().err


def test_a_damaged_comparison_of_batch_sizes_is_named(tmp_path, capsys):
    (tmp_path / "batching.json").write_text("{}")
    assert cli.run(["report", str(tmp_path)]) == 2
    assert "batching.json" in capsys.readouterr().err


def test_a_shape_that_no_iteration_had_is_not_drawn(tmp_path):
    job = Job()
    train(job, 10)
    (tmp_path / "samples.jsonl").write_bytes(b"".join(encode_line(event) for event in job.state.events))
    timeline = read_timeline(tmp_path)
    assert timeline.shapes[-1].iteration == 10
    assert 5 <= representative(timeline).iteration < 10
    assert shape_rows(timeline)[-1].iteration_s != shape_rows(timeline)[-1].iteration_s


def test_a_trace_has_every_token_on_its_workers_row(run_dir, capsys):
    assert cli.run(["trace", str(run_dir)]) == 0
    capsys.readouterr()
    timeline = read_timeline(run_dir)
    trace = json.loads((run_dir / "trace.json").read_text())
    named = [one for one in trace["traceEvents"] if one["ph"] == "X" and one["cat"] == "worker"]
    computed = [one for one in named if "samples" in one["args"]]
    assert len(computed) == sum(len(event.rows) for event in timeline.tokens)
    assert {row for _, row in spans(chrome_trace(timeline), "F1.0")} >= {"worker: tokens", "worker: inputs of tokens"}
    helped = [one for one in computed if one["args"]["bucket of"] == "n0" and one["pid"] != 0]
    assert helped


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [1, 2]},
        {"iteration_s": -1.0},
        {"compute_s": [1e300, 0.0, 0.0]},
        {"fetched_bytes": [-1, 0, 0]},
        {"rows": [["F1", 0, 3, 0, 8, 0, 1, 0, 0, 0]]},
        {"rows": [["X", 0, 0, 0, 8, 0, 1, 0, 0, 0]]},
        {"rows": [["F1", 0, 0, 0, 8, 5, 1, 0, 0, 0]]},
    ],
)
def test_damaged_tokens_are_named(run_dir, change):
    path = run_dir / "samples.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    number = next(k for k, event in enumerate(events) if event["event"] == "tokens")
    events[number] |= change
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    with pytest.raises(InputError, match=f"samples.jsonl, event {number + 1}:"):
        read_timeline(run_dir)
