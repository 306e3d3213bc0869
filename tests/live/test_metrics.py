"""Prometheus text over HTTP, read by Prometheus's own parser."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from nalb.cli.main import run
from nalb.errors import InputError
from nalb.events import AbortEvent, LayoutEvent, encode_line
from nalb.live.following import check_port
from nalb.live.state import LiveState
from nalb.live.tail import RunTail
from nalb.reporting.about_file import write_about
from tests.live.test_state import READY, iterations

prometheus = pytest.importorskip("prometheus_client.parser", reason="needs the extra metrics")


def scraped(port):
    """Values by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    families = prometheus.text_string_to_metric_families(text)
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


def append(run_dir, events):
    with open(run_dir / "samples.jsonl", "ab") as file:
        file.write(b"".join(map(encode_line, events)))


def test_a_scrape_has_what_the_run_has_written_by_then(tmp_path):
    from nalb.live.metrics import serving

    write_about(tmp_path, "1.2.3", ["launch"])
    with serving(RunTail(tmp_path), "127.0.0.1", 0) as (port, _):
        found = scraped(port)
        assert found["nalb_iterations_total",] == 0
        assert not any(name.startswith("nalb_exchange") for name, *_ in found)
        events = iterations(4, resent={"n1": 3}, queued_bytes={"n1": 70_000})
        append(tmp_path, [READY, LayoutEvent(at_s=101.0, model_bytes=12_000_000), *events[:3]])
        assert scraped(port)["nalb_iterations_total",] == 3
        append(tmp_path, events[3:])
        found = scraped(port)
    assert found["nalb_iterations_total",] == 4
    assert found["nalb_running",] == 0
    assert found["nalb_exchange_seconds",] == 2.0
    assert found["nalb_iteration_seconds",] == pytest.approx(2.0)
    assert found["nalb_share_ratio", ("node", "n3")] == 0.25
    assert found["nalb_link_rate_bytes_per_second", ("direction", "up"), ("node", "n0")] == 9e6
    assert found["nalb_carried_bytes_total", ("node", "n2")] == pytest.approx(72e6)
    assert [found["nalb_resent_packets_total", ("node", f"n{k}")] for k in range(3)] == [0, 12, 0]
    assert [found["nalb_queued_bytes", ("node", f"n{k}")] for k in range(3)] == [0, 70_000, 0]
    limit = ("nalb_limit_seconds", ("direction", "both"), ("kind", "link"), ("where", "n0"))
    assert found[limit] == pytest.approx(2.0)
    unexplained = ("nalb_limit_seconds", ("direction", ""), ("kind", "not explained"), ("where", ""))
    assert found[unexplained] == pytest.approx(0.0, abs=0.05)
    assert found["nalb_plan_info", ("reason", "least time"), ("scheme", "average")] == 1
    with serving(RunTail(tmp_path), "127.0.0.1", 0) as (port, _):  # who comes late sees all that came before
        assert scraped(port) == found
        with pytest.raises(InputError, match="choose another"), serving(RunTail(tmp_path), "127.0.0.1", port):
            pass
        with pytest.raises(InputError, match=r"--metrics \d+ on"):
            check_port("127.0.0.1", port, "--metrics")


@pytest.mark.parametrize(("round_trip_s", "is_told"), [(0.0, False), (None, False), (0.02, True)])
def test_what_is_not_known_is_left_out(tmp_path, round_trip_s, is_told):
    from nalb.live.metrics import serving

    append(tmp_path, [READY, *iterations(2, round_trip_s=round_trip_s)])
    with serving(RunTail(tmp_path), "127.0.0.1", 0) as (port, _):
        found = scraped(port)
    assert found["nalb_iterations_total",] == 2
    assert ("nalb_round_trip_seconds",) in found if is_told else ("nalb_round_trip_seconds",) not in found
    assert ("nalb_running",) not in found, "no command of nalb began it"


def test_an_attempt_that_begins_anew_has_not_failed(tmp_path):
    from nalb.live.metrics import serving

    with serving(RunTail(tmp_path), "127.0.0.1", 0) as (port, _):
        append(tmp_path, [READY, *iterations(1), AbortEvent(at_s=109.0, reason="worker n1 left")])
        assert scraped(port)["nalb_failed",] == 1
        (tmp_path / "restart-1").mkdir()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(tmp_path / "restart-1" / "observers"))
            found = scraped(port)
    assert (found["nalb_running",], found["nalb_failed",], found["nalb_restarts_total",]) == (1, 0, 1)


def test_a_damaged_record_ends_the_command_in_one_line(tmp_path):
    append(tmp_path, [READY, *iterations(1)])
    with open(tmp_path / "samples.jsonl", "ab") as file:
        file.write(b'{"event":"block","at_s":"soon"}\n')
    words = ["-m", "nalb.cli.main", "metrics", str(tmp_path), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            port = int(re.search(r":([0-9]+)/", server.stdout.readline())[1])
            assert scraped(port) == {}  # no figures of a part
            _, err = server.communicate(timeout=20)
        finally:
            server.kill()
    assert server.returncode == InputError.exit_code
    assert "samples.jsonl, byte " in err
    assert err.count("\n") == 1


def test_metrics_of_a_run_of_several_trainings_name_them(tmp_path, capsys):
    write_about(tmp_path, "1.2.3", ["compare"])
    for name in ("off", "lb-bsp"):
        (tmp_path / name).mkdir()
        append(tmp_path / name, [READY, *iterations(1)])
    for more in (["--port", "0"], ["--tensorboard", str(tmp_path / "board")]):
        assert run(["metrics", str(tmp_path), *more]) == 2
        assert f"has no iterations of its own: give one of {tmp_path / 'lb-bsp'}" in capsys.readouterr().err


def test_metrics_wait_where_there_is_nothing_of_a_run_and_say_so(tmp_path):
    words = [sys.executable, "-m", "nalb.cli.main", "metrics", str(tmp_path), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert f"{tmp_path} holds nothing of a run: give the run directory" in server.stderr.readline()
            assert scraped(int(re.search(r":([0-9]+)/", server.stdout.readline())[1]))["nalb_iterations_total",] == 0
        finally:
            server.terminate()
            server.communicate(timeout=20)


def test_what_cannot_be_served_is_one_line(tmp_path, capsys):
    assert run(["metrics", str(tmp_path), "--tensorboard", str(tmp_path), "--address", "::1"]) == 2
    assert "--address and --while need --port" in capsys.readouterr().err
    assert run(["metrics", str(tmp_path / "absent"), "--port", "0"]) == 2
    assert run(["metrics", str(tmp_path), "--port", "70000"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 2
    assert "no such directory" in err
    assert "65535" in err


def test_every_panel_of_the_dashboard_asks_for_metrics_that_exist():
    from nalb.live.metrics import metrics_of

    state = LiveState()
    state.take_all([READY, *iterations(4)])
    names = {sample.name for metric in metrics_of(state, True) for sample in metric.samples}
    dashboard = json.loads((Path(__file__).parents[2] / "examples" / "grafana.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(asked) >= 8
    for expression in asked:
        assert set(re.findall(r"nalb_\w+", expression)) <= names, expression
