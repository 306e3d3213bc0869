"""Which pages a run directory gets, and what their first lines say."""

import json

import pytest
from msgspec import structs
from psutil import Process

from nalb.cli.main import run
from nalb.events import BatchEvent, FailureEvent, LayoutEvent, SamplesEvent, encode_line
from nalb.failures import Cause, Failure
from nalb.reporting.about_file import write_about
from nalb.reporting.batching_file import BatchingFile, BatchingResult, write_batchings
from nalb.reporting.page import pages_of, run_dirs
from nalb.reporting.record import read_timeline
from nalb.reporting.summary import network_rows
from tests.live.test_state import READY, iterations
from tests.reporting.paced import MB, NODES, rates, step
from tests.reporting.runs import write_fake_run


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch):
    monkeypatch.setattr("nalb.reporting.page.png", lambda _: b"\x89PNG\r\n\x1a\n")


def write(run_dir, *events):
    run_dir.mkdir(exist_ok=True)
    (run_dir / "samples.jsonl").write_bytes(b"".join(map(encode_line, events)))


def batch(iteration):
    waits = {"period_s": [2.0, 3.0], "wait_s": [0.1, 0.0], "cpu_share": [1.0, 0.5], "memory_share": [0.1, 0.1]}
    sizes = {"sizes": [8 + iteration, 8 - iteration], "next_sizes": [9, 7], "compute_s": [1.0, 2.0]}
    told = {"workers": NODES[:2], "batching": "lb-bsp", "reason": "n0 is faster", "remove": None}
    return BatchEvent(at_s=104.0, iteration=iteration, **told, **sizes, **waits)


def test_the_batches_of_the_last_job_alone_are_told_where_a_script_was_started_again(tmp_path):
    jobs = [READY, *(batch(k) for k in range(4)), READY, batch(5), batch(6)]
    write(tmp_path, *jobs)
    (page,) = pages_of(tmp_path)
    assert [event.iteration for event in page.record.batches] == [5, 6]
    write(tmp_path, *jobs, READY)
    (page,) = pages_of(tmp_path)
    assert [event.iteration for event in page.record.batches] == [5, 6], "one that has ended before its first batch"
    write(tmp_path, *jobs, READY, *iterations(2))
    (page,) = pages_of(tmp_path)
    assert page.file == "report.html", "the last job has no batches"
    write(tmp_path, *jobs)
    write_about(tmp_path, "1", ["compare"])
    (page,) = pages_of(tmp_path)
    assert [event.iteration for event in page.record.batches] == [0, 1, 2, 3, 5, 6]


def test_the_report_of_a_launch_needs_no_run_json(tmp_path, capsys):
    write(tmp_path, READY, LayoutEvent(at_s=101.0, model_bytes=12_000_000), *iterations(6))
    write_about(tmp_path, "1.2.3", ["launch", "--local", "4", "--", "python", "my train.py"])
    assert run(["report", str(tmp_path)]) == 0
    assert (
        "an iteration of average takes 2 s, its exchange 2 s; n0's link (up and down) sets the pace"
        in capsys.readouterr().out
    )
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>a job on 4 nodes</h1>" in page
    assert "nalb launch --local 4 -- python &#39;my train.py&#39;" in page
    assert "Begun 20" in page
    assert "nan" not in page
    assert "<td>n3</td><td>- / -</td><td>288 / 288</td><td>25.0%</td>" in page


def test_every_page_says_which_attempt_it_is_of_and_why_others_failed(tmp_path):
    failure = Failure(cause=Cause.ENDED, detail="ended with exit code 3", role="worker", node="n1")
    write(tmp_path, READY, *iterations(3), FailureEvent(at_s=200.0, failure=failure))
    write(tmp_path / "restart-1", READY, *iterations(6), batch(0))
    for run_dir, own, names in (
        (tmp_path, "the first attempt", ["report.html"]),
        (tmp_path / "restart-1", "restart-1", ["report.html", "batching.html"]),
    ):
        assert run(["report", str(run_dir)]) == 0
        for name in names:
            page = (run_dir / name).read_text(encoding="utf-8")
            assert f"what is told here is of {own} alone; the first attempt failed: worker n1 ended" in page


def test_a_report_reads_a_record_once(tmp_path):
    rows = [(0, 1, 1, 1000, k, k + 1) for k in range(100_000)]
    write(tmp_path, READY, SamplesEvent(at_s=101.0, iteration=0, rows=rows), *iterations(3))
    before = Process().io_counters().read_chars
    pages_of(tmp_path)
    assert Process().io_counters().read_chars - before < 1.5 * (tmp_path / "samples.jsonl").stat().st_size


def test_the_first_lines_of_a_comparison_are_its_result(tmp_path, capsys):
    write_fake_run(tmp_path, schemes=("stock", "average", "exact"))
    assert run(["report", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()[0]
    assert told.startswith("exact is 1.59 times as fast as stock; 1.16 x what these links allow; ")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert told.partition(";")[0] in page
    assert page.index(told.partition(";")[0]) < page.index("<table>")
    assert "no about.json" in page
    assert "<td>n1</td><td>80 / 80</td><td>76.51 / 76.51</td><td>25.0%</td>" in page
    assert "<th>x bound</th>" in page


def test_iterations_that_overlap_are_marked_where_they_stand(tmp_path):
    write_fake_run(tmp_path, schemes=("stock", "exact"))
    run_json = json.loads((tmp_path / "run.json").read_text())
    stock = run_json["schemes"]["stock"]
    stock["iteration_s"] = [value - 0.2 for value in stock["communication_s"]]
    run_json["schemes"]["exact"]["link_error"] = {"median": 1.1, "p95": 2.95}
    (tmp_path / "run.json").write_text(json.dumps(run_json))
    assert run(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count(" *</td>") == 1
    assert "* stock: an iteration takes less than its exchange" in page
    assert "The estimates of exact miss" in page


@pytest.mark.parametrize(("wait_s", "is_noted"), [(0.02, False), (1.5, True)])
def test_waits_for_plans_are_told_where_they_lengthen_iterations(tmp_path, wait_s, is_noted):
    write(tmp_path, READY, *(structs.replace(one, plan_wait_s=dict.fromkeys(NODES, wait_s)) for one in iterations(6)))
    assert run(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ("average: workers wait 1.5 s of an iteration&#39;s 2 s for plans" in page) == is_noted


def test_uplinks_have_rows_of_their_own(tmp_path):
    sites = {"n0": "hill", "n1": "hill", "n2": "dale", "n3": "n3"}
    estimate = rates([50] * 4, uplinks={"hill": (4 * MB, 8 * MB), "dale": (6 * MB, 6 * MB), "n3": (9 * MB, 9 * MB)})
    least = rates([50] * 4, uplinks={"hill": (4 * MB, 2 * MB), "dale": (6 * MB, 6 * MB), "n3": (9 * MB, 9 * MB)})
    configured = rates([50] * 4, uplinks={"hill": (5 * MB, 10 * MB), "dale": (7 * MB, 7 * MB), "n3": (None, None)})
    by_sites = step(sites=sites, estimate=estimate, least=least, configured=configured)
    one_level = step(configured=rates([50] * 4, uplinks=configured.uplinks, site_of=sites))
    for one, measured in ((by_sites, "32 / ≥ 16"), (one_level, "- / -")):
        write(tmp_path, one.ready, one.event)
        assert run(["report", "--force", str(tmp_path)]) == 0
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert f"<td>uplink of hill</td><td>40 / 80</td><td>{measured}</td><td>50.0%</td>" in page
        assert "<td>uplink of dale</td><td>56 / 56</td>" in page
        assert "uplink of n3" not in page


def test_trainings_are_compared_by_whole_iterations_and_replays_by_the_exchange(tmp_path):
    write_fake_run(tmp_path, schemes=("stock", "exact"), workload="train cnn")
    run_json = json.loads((tmp_path / "run.json").read_text())
    exact = run_json["schemes"]["exact"]
    exact["iteration_s"] = [value / 2 for value in run_json["schemes"]["stock"]["iteration_s"]]
    for workload, speed_up, of in (("train cnn", "2.00", "whole iterations"), ("replay vgg", "1.30", "communication")):
        (tmp_path / "run.json").write_text(json.dumps(run_json | {"workload": workload}))
        assert run(["report", "--force", str(tmp_path)]) == 0
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert f"<td>{speed_up}</td>" in page
        assert f"against the first scheme, of {of};" in page


def test_configured_rates_are_of_the_iteration_whose_measured_ones_are_shown(tmp_path):
    """On a network that changes, the first ones are long past."""
    sites = {"n0": "hill", "n1": "hill", "n2": "dale", "n3": "dale"}
    told = [
        rates([each] * 4, uplinks={"hill": (each * MB, each * MB), "dale": (each * MB, each * MB)})
        for each in (50, 9, 5)
    ]
    first, measured = (step(k, sites=sites, configured=told[k], estimate=told[k]) for k in range(2))
    last = step(2, sites=sites, configured=told[2], estimate=rates([], uplinks={}))
    write(tmp_path, first.ready, *(one.event for one in (first, measured, last)))
    found = {row.node: (row.configured, row.measured) for row in network_rows(read_timeline(tmp_path))}
    assert found["n0"] == found["uplink of hill"] == ("72 / 72", "72 / 72")
    unmeasured = [step(k, sites=sites, configured=told[k]) for k in range(2)]
    write(tmp_path, first.ready, *(one.event for one in unmeasured))
    found = {row.node: (row.configured, row.measured) for row in network_rows(read_timeline(tmp_path))}
    assert found["n0"] == ("72 / 72", "- / -")


def test_batches_have_a_page(tmp_path, capsys):
    write(tmp_path, READY, *(batch(k) for k in range(4)))
    assert [page.file for page in pages_of(tmp_path)] == ["batching.html"]
    assert run(["report", str(tmp_path)]) == 0
    assert "batching.html" in capsys.readouterr().out
    page = (tmp_path / "batching.html").read_text(encoding="utf-8")
    assert "Batch sizes by lb-bsp" in page
    assert "<td>n1</td><td>8</td><td>5</td><td>2.000</td>" in page
    write(tmp_path, READY, *iterations(3), batch(0))
    assert [page.file for page in pages_of(tmp_path)] == ["report.html", "batching.html"]


def test_a_comparison_of_batchings_has_a_report_for_each(tmp_path):
    result = BatchingResult(True, [[8, 8]], [[1.0, 2.0]], [[2.0, 2.0]], [[0.0, 0.0]], None, None, [])
    write_batchings(tmp_path, BatchingFile("net", "train cnn", "exact", 16, {"off": result, "lb-bsp": result}))
    assert run_dirs(tmp_path) == [tmp_path / "off", tmp_path / "lb-bsp"]
    for name in ("off", "lb-bsp"):
        write(tmp_path / name, READY, batch(0))
    assert run(["report", str(tmp_path)]) == 0
    assert all((tmp_path / name / "batching.html").exists() for name in ("off", "lb-bsp"))


def test_a_directory_without_iterations_says_what_has_some(tmp_path, capsys):
    write(tmp_path, READY)
    assert run(["report", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert f"{tmp_path} has no iterations: wait for the first one" in err
    assert "`nalb compare` does" in err
    assert err.count("\n") == 1
