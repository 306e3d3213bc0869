"""A data plane that is not MXNet joins a job, and the ordinary coordinator plans, measures and records it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.reporting.record import read_timeline
from nalb.services.exchange.planes import AGENTS
from nalb.settings import from_environment
from nalb.transport.server import CoordinatorThread
from tests.ports import free_ports
from tests.transport.toy_plane import ITERATIONS

RANKS = 3
TOY = Path(__file__).parent / "toy_plane.py"


@pytest.mark.jobs
def test_a_plane_on_plain_sockets_is_planned_measured_and_recorded(tmp_path):
    coordinator, *ports = free_ports(1 + RANKS)
    environment = {
        "DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091",
        "DMLC_NUM_WORKER": str(RANKS), "DMLC_NUM_SERVER": str(RANKS), "NALB_COORDINATOR": f"127.0.0.1:{coordinator}",
        "NALB_SCHEME": "exact", "NALB_SAMPLES": str(tmp_path / "samples.jsonl"),
    }  # fmt: skip
    with CoordinatorThread(from_environment(environment, "host"), plane=AGENTS):
        ranks = [
            subprocess.Popen(
                [sys.executable, TOY, str(rank), *map(str, ports)],
                env=os.environ | environment | {"NALB_NODE": f"n{rank}"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            assert [one.communicate(timeout=60)[0] for one in ranks] == ["sums are right\n"] * RANKS
        finally:
            for one in ranks:
                one.kill()
    record = read_timeline(tmp_path)
    assert record.nodes == record.servers == ["n0", "n1", "n2"]
    events = [step.event for step in record.ordered()]
    assert len(events) == ITERATIONS
    assert all(event.samples > 0 and not event.rejected for event in events)
    assert {node for event in events for node in event.estimate.up} == {"n0", "n1", "n2"}
    assert any(event.predicted_s for event in events), "no plan was made from what was measured"
