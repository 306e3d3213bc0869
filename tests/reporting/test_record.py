import dataclasses
import io
import json
import math
import tracemalloc

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from rich.console import Console

from nalb.cli import main as cli
from nalb.errors import InputError
from nalb.events import IterationEvent, LayoutEvent
from nalb.live.state import LiveState
from nalb.live.tail import RunTail
from nalb.planning.slices import wire_dtype
from nalb.reporting.record import read_record, read_timeline, record_of, values_bytes
from nalb.reporting.run_file import read_events, read_run, write_run
from nalb.reporting.summary import counting_rule, headline, level_bounds, shared_uplinks, summarise
from nalb.reporting.table import printed_lines, training_table
from tests.reporting.runs import write_events, write_fake_run


@pytest.fixture
def run_dir(tmp_path):
    write_fake_run(tmp_path)
    return tmp_path


def events_of(run_dir):
    return [json.loads(line) for line in (run_dir / "samples.jsonl").read_text().splitlines()]


def test_run_file_survives_a_round_trip(tmp_path):
    run = write_fake_run(tmp_path)
    assert read_run(tmp_path) == run
    write_run(tmp_path, run)
    assert read_run(tmp_path) == run
    assert list(json.loads((tmp_path / "run.json").read_text())) == [
        "network", "workload", "nodes", "model_bytes", "bound_s", "schemes", "goodput_bound_s"
    ]  # fmt: skip


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "int4"])
def test_the_bytes_of_values_are_those_that_a_script_sums_however_they_travel(precision):
    tensors = [(str(k), elements, wire_dtype("float32", precision), k) for k, elements in enumerate((1000, 33))]
    assert values_bytes(LayoutEvent(at_s=0.0, model_bytes=7, tensors=tensors)) == 4 * 1033
    assert values_bytes(LayoutEvent(at_s=0.0, model_bytes=7)) == 7  # nobody tells the tensors


def test_each_round_of_a_script_has_a_warm_up(tmp_path):
    run = write_fake_run(tmp_path, ("stock", "exact"), iterations=7)
    result = replace(run.schemes["exact"], rounds=[3, 4])
    assert result.steady(list("abcdefg")) == ["c", "f", "g"]
    assert result.median_s([9.0, 9.0, 1.0, 9.0, 9.0, 2.0, 3.0]) == 2.0
    short = replace(run.schemes["exact"], rounds=[2, 1])
    assert short.steady(list("abc")) == ["a", "b", "c"]  # nothing is left after the warm-up
    write_run(tmp_path, replace(run, schemes={**run.schemes, "exact": result}))
    assert "each round's first 2 iterations" in counting_rule(read_record(tmp_path))
    wrong = replace(run.schemes["exact"], rounds=[3, 3])
    write_run(tmp_path, replace(run, schemes={"exact": wrong}))
    with pytest.raises(InputError, match="rounds of 6 iterations in all, but lists of 7"):
        read_run(tmp_path)


def test_a_run_without_known_rates_has_no_bounds(tmp_path):
    run = write_fake_run(tmp_path, ("stock", "exact"), workload="train python train.py", network="loopback")
    write_events(tmp_path, [event | {"bound_s": None} for event in events_of(tmp_path)])
    schemes = {name: replace(one, samples_per_min=None, printed="loss 0.1") for name, one in run.schemes.items()}
    write_run(tmp_path, replace(run, bound_s=None, goodput_bound_s=None, schemes=schemes))
    record = read_record(tmp_path)
    assert all(math.isnan(bound) for bound in record.bounds_s("exact"))
    rows = summarise(record)
    assert all(math.isnan(row.over_bound) and math.isnan(row.samples_per_min) for row in rows)
    assert headline(record, rows, []) == "exact is 1.29 times as fast as stock"  # by iterations: 4.15 and 3.22 s
    assert headline(replace_workload(record, "replay mobilenet"), rows, []) == "exact is 1.30 times as fast as stock"
    shown = Console(width=100, record=True, file=io.StringIO())
    shown.print(training_table(record))
    last = [line for line in shown.export_text().splitlines() if line.split()[:1] == ["exact"]]
    assert last[0].split() == ["exact", "5", "3.227", "1.29", "3.127", "3.127", "-", "-"]
    assert printed_lines(record.run) == ["stock, printed last: loss 0.1", "exact, printed last: loss 0.1"]


def replace_workload(record, workload):
    return dataclasses.replace(record, run=replace(record.run, workload=workload))


def test_iterations_are_told_apart_by_scheme_and_carry_their_samples(run_dir):
    record = read_record(run_dir)
    assert record.nodes == ["n0", "n1", "n2", "n3"]
    assert {name: len(steps) for name, steps in record.steps.items()} == {"stock": 5, "average": 5, "aware": 5}
    assert [len(step.rows) for step in record.ordered()] == [0] * 10 + [16] * 5
    assert record.steps["aware"][0].saturated("up", "n0")
    assert not record.steps["aware"][0].saturated("up", "n3")
    assert not record.steps["stock"][0].saturated("up", "n0")  # its load is not known


def test_the_messages_of_a_long_job_are_not_kept(tmp_path):
    """Each of the 20 iterations has 5,000 messages, of which Python needs 150 bytes or more each."""
    ready = {"event": "ready", "at_s": 1.0, "nodes": ["n0", "n1"], "servers": ["n0", "n1"]}
    rows = [[0, 1, 1, 70_000 + k, 300 * k, 300 * k + 500] for k in range(5000)]
    told = {"event": "iteration", "scheme": "exact", "communication_s": {"n0": 0.5, "n1": 0.5}}
    events = [ready]
    for k in range(20):
        events += [{"event": "samples", "at_s": 2.0 + k, "iteration": k, "rows": rows}]
        events += [told | {"at_s": 3.0 + k, "iteration": k}]
    write_events(tmp_path, events)
    tracemalloc.start()
    try:
        (steps,) = read_timeline(tmp_path).steps.values()
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()
    assert [list(step.rows) for step in steps] == [[tuple(row) for row in rows]] * 20
    path = tmp_path / "samples.jsonl"
    path.write_bytes(path.read_bytes()[100:])
    with pytest.raises(InputError, match="another program has changed the file"):
        list(steps[3].rows)


def test_a_full_disk_tears_many_lines_and_one_warning_says_so(run_dir, caplog):
    path = run_dir / "samples.jsonl"
    whole = read_events(run_dir)
    path.write_bytes(b"".join(line + b'\n{"event":"samp\n' for line in path.read_bytes().splitlines()))
    assert read_events(run_dir) == whole
    list(RunTail(run_dir).fresh())  # as `nalb metrics` and `nalb watch` read it
    assert caplog.text.count("torn lines of the file") == 1


def test_bound_is_each_iterations_own_where_events_tell_it(run_dir):
    assert read_record(run_dir).bounds_s("aware") == [2.0, 2.0, 2.0, 2.1, 2.1]
    (run_dir / "samples.jsonl").unlink()
    assert read_record(run_dir).bounds_s("aware") == [2.0] * 5


def test_change_falls_where_its_time_lies_in_the_iteration(tmp_path):
    write_fake_run(tmp_path, schemes=("stock", "aware"), changes=True)
    record = read_record(tmp_path)
    assert record.change_places("stock") == [pytest.approx(2.5)]
    assert record.change_places("aware") == [pytest.approx(2.5)]


def test_jobs_that_number_anew_keep_their_own_samples(run_dir):
    """Training has one job per scheme, all in one file."""
    events = events_of(run_dir)
    ready, again = events[0], []
    for event in events:
        if event["event"] == "iteration" and event["iteration"] in (5, 10):
            again.append(ready | {"at_s": event["at_s"] - 1})
        again.append(event | ({"iteration": event["iteration"] % 5} if "iteration" in event else {}))
    write_events(run_dir, again)
    assert [len(step.rows) for step in read_record(run_dir).steps["aware"]] == [0, 16, 16, 16, 16]


def test_missing_samples_leave_run_json_alone(run_dir):
    (run_dir / "samples.jsonl").unlink()
    record = read_record(run_dir)
    assert not record.has_events
    assert record.steps == {}


def test_torn_last_line_is_left_out(run_dir):
    whole = len(read_events(run_dir))
    with open(run_dir / "samples.jsonl", "a") as file:
        file.write('{"event": "iteration", "at_s": 12')
    assert len(read_events(run_dir)) == whole


def test_unknown_events_and_fields_are_passed_over(run_dir):
    events = events_of(run_dir)
    write_events(run_dir, [{"event": "news", "x": 1}, *(event | {"more": [1]} for event in events)])
    assert len(read_record(run_dir).ordered()) == 15


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "Input data was truncated"),
        (b"[" * 100_000, "run.json"),
        (b'{"network": "\xff"}', "run.json"),
        (b"{}", "missing required field `network`"),
    ],
)
def test_damaged_run_json_is_named(run_dir, content, complaint):
    (run_dir / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=complaint) as caught:
        read_run(run_dir)
    assert str(run_dir / "run.json") in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", 0),
        ("model_bytes", -1),
        ("bound_s", -1.0),
        ("bound_s", 1e300),
        ("goodput_bound_s", 1.9),
        ("schemes", {}),
        ("surprise", 1),
    ],
)
def test_values_that_no_run_has_are_refused(run_dir, field, value):
    document = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(document | {field: value}))
    with pytest.raises(InputError, match=field):
        read_run(run_dir)


def test_lists_of_different_lengths_and_impossible_times_are_refused(run_dir):
    document = json.loads((run_dir / "run.json").read_text())
    document["schemes"]["aware"]["iteration_s"].pop()
    (run_dir / "run.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="different lengths"):
        read_run(run_dir)
    document["schemes"]["aware"]["iteration_s"].append(-1.0)
    (run_dir / "run.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="time of -1 s"):
        read_run(run_dir)


@pytest.mark.parametrize(
    "row", [[9, 0, 1, 5, 0, 1], [-1, 0, 1, 5, 0, 1], [0, 1, 1, -5, 0, 1], [0, 1, 1, 5, 9, 1], [0, 1, 1, 5, 0, 10**30]]
)
def test_impossible_samples_are_refused(run_dir, row):
    events = events_of(run_dir)
    for event in events:
        if event["event"] == "samples":
            event["rows"].append(row)
    write_events(run_dir, events)
    with pytest.raises(InputError, match=r"samples\.jsonl"):
        read_record(run_dir)


@pytest.mark.parametrize(
    "line", [b"{", b'{"event":"re{"event":"block"}', b'{"event":"ready","at_s":1,"nodes":[{"event":"block"}']
)
def test_a_torn_line_is_skipped_with_a_warning(run_dir, line, caplog):
    path = run_dir / "samples.jsonl"
    whole = read_events(run_dir)
    path.write_bytes(line + b"\n" + path.read_bytes())
    assert read_events(run_dir) == whole
    assert caplog.text.count("is torn") == 1
    assert len(read_record(run_dir).ordered()) == 15


@pytest.mark.parametrize("line", [b"7", b'{"event": "iteration"}', b'{"event": "ready", "at_s": 1, "nodes": 3}'])
def test_damaged_events_are_named(run_dir, line):
    path = run_dir / "samples.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(InputError, match=r"samples\.jsonl, (line|event) 1"):
        read_record(run_dir)


def test_files_of_two_runs_are_refused(run_dir, tmp_path):
    write_fake_run(tmp_path / "other", iterations=9)
    (tmp_path / "other" / "samples.jsonl").replace(run_dir / "samples.jsonl")
    with pytest.raises(InputError, match="put the two files of one run together"):
        read_record(run_dir)


@pytest.mark.jobs
def test_a_shared_uplink_that_was_noticed_is_told_once(run_dir, capsys):
    noticed = {"event": "shareduplink", "at_s": 104.0, "iteration": 4, "nodes": ["n0", "n1"], "others": ["n2", "n3"]}
    rates = {"up_bytes_per_s": 7.5e6, "down_bytes_per_s": 7e6}
    events = events_of(run_dir)
    write_events(run_dir, [*events, noticed | rates, noticed | rates | {"iteration": 9}])
    expected = "n0, n1 and n2, n3 seem to be sites with a shared uplink: what crosses stays at 60 and 56 Mbit/s in all"
    (line,) = shared_uplinks(read_record(run_dir))
    assert line.startswith(expected)
    assert "by iteration 4" in line
    assert cli.run(["report", str(run_dir)]) == 0
    assert expected in capsys.readouterr().out
    assert expected in (run_dir / "report.html").read_text()


def test_the_bounds_of_both_levels_are_told_with_the_one_that_binds(run_dir):
    assert level_bounds(read_record(run_dir)) == []
    events = events_of(run_dir)
    for wan_s, lan_s, binding in ((1.72, 0.5, "uplinks"), (1.72, 1.9, "LANs")):
        last = events[-1] | {"bound_s": max(wan_s, lan_s), "wan_bound_s": wan_s, "lan_bound_s": lan_s}
        write_events(run_dir, [*events[:-1], last])
        assert level_bounds(read_record(run_dir)) == [
            f"Bound by sites: the uplinks need {wan_s:g} s, the LANs {lan_s:g} s; the {binding} bind."
        ]


def test_jobs_that_take_turns_keep_their_own_sites(tmp_path):
    """A comparison of `exact` with `exact-sites` runs two jobs, which write into one file."""
    ready = {"event": "ready", "at_s": 1.0, "nodes": ["n0", "n1", "n2"], "servers": ["n0"]}
    sites = {"n0": "a", "n1": "a", "n2": "b"}
    told = {"event": "iteration", "communication_s": {"n0": 1.0}}
    by_sites = {"estimate": {"uplinks": {"a": [None, None], "b": [None, None]}}}
    events = [ready | {"sites": sites}, ready]
    events += [told | {"at_s": 2.0 + k, "iteration": k, "scheme": "exact-sites"} for k in range(2)]
    events += [told | by_sites | {"at_s": 4.0 + k, "iteration": k, "scheme": "exact"} for k in range(2)]
    write_events(tmp_path, events)
    steps = read_timeline(tmp_path).steps
    assert all(step.ready.sites == sites for step in steps["exact"])
    assert not any(step.ready.sites for step in steps["exact-sites"])


def test_jobs_that_take_turns_keep_their_own_layouts(tmp_path):
    """A comparison of `exact` with `exact+int8` runs two jobs, which write into one file."""
    ready = {"event": "ready", "at_s": 1.0, "nodes": ["n0", "n1"], "servers": ["n0", "n1"]}
    layout = {"event": "layout", "at_s": 1.5, "model_bytes": 4000}
    told = {"event": "iteration", "communication_s": {"n0": 0.5, "n1": 0.5}}
    rounded = {"rounded": {"answers": "int8", "pushes": {"n0": "int8", "n1": "int8"}}}
    events = [ready, layout, ready, layout | {"precision": "int8"}]
    events += [told | {"at_s": 2.0, "iteration": 0, "scheme": "exact"}]
    events += [told | rounded | {"at_s": 3.0, "iteration": 0, "scheme": "exact+int8"}]
    write_events(tmp_path, events)
    steps, live = read_timeline(tmp_path).steps, LiveState()
    assert (steps["exact"][0].layout.precision, steps["exact+int8"][0].layout.precision) == (UNSET, "int8")
    for event in read_events(tmp_path):
        live.take(event)
        if isinstance(event, IterationEvent):
            assert live.last.layout == steps[event.scheme][0].layout


def test_the_first_of_each_turn_and_job_is_known_to_follow_none_of_its_own(tmp_path):
    ready = {"event": "ready", "at_s": 1.0, "nodes": ["n0"], "servers": ["n0"]}
    told = {"event": "iteration", "communication_s": {"n0": 0.5}, "iteration_s": {"n0": 20.0}}
    schemes = ["gloo", "gloo", "exact", "exact", "gloo", "gloo"]
    turns = [told | {"at_s": 20.0 + 20 * k, "iteration": k, "scheme": scheme} for k, scheme in enumerate(schemes)]
    job = [ready | {"at_s": 200.0}, told | {"at_s": 220.0, "iteration": 0, "scheme": "gloo"}]
    write_events(tmp_path, [ready, *turns, *job])
    firsts, live = [], LiveState()
    for event in read_events(tmp_path):
        live.take(event)
        if isinstance(event, IterationEvent):
            firsts.append(live.last.is_first)
    steps = read_timeline(tmp_path).ordered()
    assert firsts == [step.is_first for step in steps] == [True, False, True, False, True, False, True]
    assert [step.iteration_s for step in steps[:3]] == [0.5, 20.0, 0.5]
    assert [step.worker_iteration_s["n0"] for step in steps[:3]] == [0.5, 20.0, 0.5]


def test_of_an_iteration_after_one_that_was_broken_off_only_the_exchange_is_known(tmp_path):
    ready = {"event": "ready", "at_s": 1.0, "nodes": ["n0"], "servers": ["n0"]}
    told = {"event": "iteration", "scheme": "exact", "communication_s": {"n0": 0.5}, "iteration_s": {"n0": 2.0}}
    events = [told | {"at_s": at_s, "iteration": k} for k, at_s in ((0, 3.0), (1, 5.0), (3, 25.0), (4, 27.0))]
    write_events(tmp_path, [ready, *events])
    record, live = record_of(tmp_path), LiveState()
    live.take_all(read_events(tmp_path))
    assert [step.iteration_s for step in live.recent] == [0.5, 2.0, 0.5, 2.0]
    assert (
        record.run.schemes["exact"].iteration_s == [step.iteration_s for step in record.ordered()] == [0.5, 2, 0.5, 2]
    )
    assert live.left_s(5) == 2.0
