"""The timeline against what the run's files say, and the exposed part by hand."""

import json
from dataclasses import replace
from itertools import pairwise
from math import nan

import pytest

from nalb.cli import main as cli
from nalb.reporting.about_file import write_about
from nalb.reporting.link_figures import throughput_inside
from nalb.reporting.record import read_record, read_timeline, record_of
from nalb.reporting.share_figures import bytes_by_scheme, shares_over_iterations
from nalb.reporting.trace import chrome_trace, exposures
from tests.reporting.paced import step, timeline
from tests.reporting.runs import iteration_event, write_events, write_fake_run


def events_of(run_dir):
    return [json.loads(line) for line in (run_dir / "samples.jsonl").read_text().splitlines()]


@pytest.fixture
def run_dir(tmp_path):
    """Two nodes; every iteration: exchange in its last 2 s, of n0's 1.5 s and of n1's 0.5 s after the last gradient."""
    write_fake_run(tmp_path, ("average", "aware"), nodes=2)
    events = events_of(tmp_path)
    for event in events:
        if event["event"] == "iteration":
            end_s = event["at_s"] - 0.01
            event["started_s"] = {"n0": end_s - 2.0, "n1": end_s - 2.0}
            event["computed_s"] = {"n0": end_s - 1.5, "n1": end_s - 0.5}
            event["finished_s"] = {"n0": end_s, "n1": end_s}
    write_events(tmp_path, events)
    return tmp_path


def spans(trace, name):
    """(node, row) -> [(start, end)] of all spans of a name, in seconds of the run."""
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    nodes = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    found = {}
    for e in trace["traceEvents"]:
        if e["ph"] == "X" and e["name"] == name:
            row = found.setdefault((nodes[e["pid"]], rows[e["pid"], e["tid"]]), [])
            row.append((e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6))
    return found


def test_the_exposed_part_is_the_worst_workers(run_dir):
    rows = exposures(read_record(run_dir))
    assert [row.scheme for row in rows] == ["average", "aware"]
    for row in rows:
        assert row.exposed_s == pytest.approx(1.5)
        assert row.communication_s == pytest.approx(2.0)
        assert row.hidden_part == pytest.approx(0.25)


def test_the_first_iterations_of_each_round_of_a_script_do_not_count():
    steps = []
    for number in range(3):
        one_job = [step(3 * number + place, exchange_s=9.0 if place < 2 else 3.0) for place in range(3)]
        steps += [replace(one, ready=one_job[0].ready) for one in one_job]
    (row,) = exposures(timeline(*steps))
    assert row.communication_s == pytest.approx(3.0, abs=0.1)


def test_gradients_complete_before_the_first_push_leave_all_exposed_and_unknown_ones_no_row(run_dir):
    events = events_of(run_dir)
    for event in events:
        if event["event"] == "iteration" and event["scheme"] == "aware":
            event["computed_s"] = {node: start_s - 1 for node, start_s in event["started_s"].items()}
        elif event["event"] == "iteration":
            del event["computed_s"]
    write_events(run_dir, events)
    (row,) = exposures(read_record(run_dir))
    assert (row.scheme, row.exposed_s, row.hidden_part) == ("aware", pytest.approx(2.0), pytest.approx(0.0))


def test_messages_lie_on_their_receivers_rows_within_their_iteration(run_dir):
    record = read_record(run_dir)
    trace = chrome_trace(record)
    pushes = spans(trace, "push")
    step = record.steps["aware"][0]
    zero_s = record.ordered()[0].begin_s
    sent = [row for s in record.steps["aware"] for row in s.rows]
    assert sum(map(len, pushes.values())) == len(sent) > 0
    start_s = step.rows_at_s + next(iter(step.rows))[4] * 1e-6 - zero_s
    assert any(a == pytest.approx(start_s, abs=1e-5) for a, _ in pushes["n0", "server: pushes from n0"])
    computing = spans(trace, f"aware {step.event.iteration}")["n1", "worker: computing"]
    assert computing[0][1] == pytest.approx(step.event.computed_s["n1"] - zero_s, abs=1e-5)


def test_no_two_spans_of_a_row_overlap(run_dir):
    events = events_of(run_dir)
    for event in events:
        if event["event"] == "samples":
            event["rows"] = [[0, 1, 1, 5, 0, 100], [0, 1, 1, 5, 50, 150], [0, 1, 1, 5, 100, 200], [1, 0, 0, 5, 9, 9]]
    write_events(run_dir, events)
    trace = chrome_trace(read_record(run_dir))
    rows = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        row.sort()
        assert all(later[0] >= earlier[1] - 0.2 for earlier, later in pairwise(row))
    assert ("n1", "server: pushes from n0 (2)") in spans(trace, "push")


def test_messages_keep_the_names_of_their_own_job_where_nodes_left(tmp_path):
    """One script under a command of nalb may have jobs of different nodes one after another."""
    jobs = ["n0", "n1", "n2", "n3"], ["n0", "n2", "n3"]
    events = []
    for number, names in enumerate(jobs):
        at_s, last = 100.0 + 50 * number, len(names) - 1
        configured = dict.fromkeys(names, 9e6)
        rows = [[1, last, 1, 2_000_000, 0, 100_000]]
        events += [
            {"event": "ready", "at_s": at_s, "nodes": names, "servers": names},
            {"event": "samples", "at_s": at_s + 1, "iteration": 0, "rows": rows},
            iteration_event(at_s + 2, 0, "exact", 2.0, names, configured, True, 0),
        ]
    write_events(tmp_path, events)
    write_about(tmp_path, "1.2.3", ["launch"])
    assert read_timeline(tmp_path).nodes == jobs[0]
    assert cli.run(["trace", str(tmp_path)]) == 0
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert list(spans(trace, "push")) == [("n3", "server: pushes from n1"), ("n3", "server: pushes from n2")]
    sent = {event["pid"] for event in trace["traceEvents"] if event["ph"] == "C" and event["args"]["sent"]}
    assert sent == {1, 2}
    assert cli.run(["report", str(tmp_path)]) == 0
    record = record_of(tmp_path)
    bars = bytes_by_scheme(record).axes[0]
    assert [label.get_text() for label in bars.get_xticklabels()] == jobs[0]
    assert [bar.get_height() for bar in bars.patches] == [3.5, 3.0, 3.5, 3.5]
    parts = shares_over_iterations(record).axes[0].images[0].get_array().filled(nan)
    assert parts[:, 1] == pytest.approx([100 / 3, nan, 100 / 3, 100 / 3], nan_ok=True)
    titles = [axes.get_title(loc="left") for axes in throughput_inside(record).axes if axes.get_visible()]
    assert titles == jobs[0]


def test_the_command_writes_a_trace_once(run_dir, capsys):
    assert cli.run(["trace", str(run_dir)]) == 0
    assert json.loads((run_dir / "trace.json").read_text())["traceEvents"]
    assert cli.run(["trace", str(run_dir)]) == 2
    assert "--force" in capsys.readouterr().err
    (run_dir / "kept").write_text("elsewhere")
    (run_dir / "trace.json").unlink()
    (run_dir / "trace.json").symlink_to("kept")
    assert cli.run(["trace", str(run_dir), "--force"]) == 0
    assert "25%" in capsys.readouterr().out
    assert (run_dir / "kept").read_text() == "elsewhere", "it is written beside and renamed"


def test_a_launch_has_no_run_json_and_needs_none(run_dir, capsys):
    (run_dir / "run.json").unlink()
    assert cli.run(["trace", str(run_dir)]) == 0
    assert "25%" in capsys.readouterr().out


def test_a_run_without_events_is_one_line(tmp_path, capsys):
    write_fake_run(tmp_path)
    (tmp_path / "samples.jsonl").unlink()
    assert cli.run(["trace", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_rounding_makes_no_spans_overlap_and_none_is_empty(run_dir):
    events = events_of(run_dir)
    for event in events:
        if event["event"] == "samples":
            event["at_s"] += 0.00000037  # a time between two microseconds
            event["rows"] = [[0, 1, 1, 5, 10 * k, 10 * k + 10] for k in range(200)] + [[1, 0, 0, 5, 9, 9]]
    write_events(run_dir, events)
    rows = {}
    for event in chrome_trace(read_record(run_dir))["traceEvents"]:
        if event["ph"] == "X":
            assert event["dur"] > 0
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        row.sort()
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(row))


def test_counters_carry_the_bytes_of_the_messages(run_dir):
    events = events_of(run_dir)
    for event in events:
        if event["event"] == "samples":
            event["rows"] = [[0, 1, 1, 4_000_000, 0, 100_000], [1, 0, 0, 1_000_000, 50_000, 100_000]]
    write_events(run_dir, events)
    record = read_record(run_dir)
    counters = [event for event in chrome_trace(record)["traceEvents"] if event["ph"] == "C"]
    steps = sum(bool(step.rows) for step in record.ordered())
    for pid, sent, received in ((0, 4e6, 1e6), (1, 1e6, 4e6)):
        own = [event for event in counters if event["pid"] == pid]
        for name, size_bytes in (("sent", sent), ("received", received)):
            area = sum(
                earlier["args"][name] * 1e6 / 8 * (later["ts"] - earlier["ts"]) * 1e-6
                for earlier, later in pairwise(own)
                if later["ts"] > earlier["ts"]
            )
            assert area == pytest.approx(steps * size_bytes, rel=0.01)
        assert own[-1]["args"] == {"sent": 0.0, "received": 0.0}


def test_a_worker_whose_start_is_not_told_is_left_out(run_dir):
    events = events_of(run_dir)
    for event in events:
        if event["event"] == "iteration":
            del event["started_s"]["n1"]
    events[-1]["finished_s"]["n0"] = 1e308  # no run has that
    write_events(run_dir, events)
    record = read_record(run_dir)
    trace = chrome_trace(record)
    label = f"aware {record.steps['aware'][0].event.iteration}"
    assert ("n0", "worker: exchange") in spans(trace, label)
    assert ("n1", "worker: exchange") not in spans(trace, label)
    assert all(row.exposed_s >= 0 for row in exposures(record))
