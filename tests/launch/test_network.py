"""A fault of a job inside an emulated network: as on loopback, and the network goes too. More: test_campaign.py."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

from nalb.errors import MachineError
from netem import build, cgroups, namespaces, qdiscs, rootless
from tests.launch.conftest import Launch, Launched

NETWORK = """
[defaults]
up_mbps = 200
down_mbps = 200
cpu_quota = 0.45
[[nodes]]
name = "a"
[[nodes]]
name = "b"
"""
REPLAY = [sys.executable, "-m", "kvstore_patch.replay", "mobilenet"]  # without end

pytestmark = [
    pytest.mark.root,
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
]


@pytest.fixture
def name():
    """A network name of this run; whatever of it is left is removed."""
    if not rootless.has_privilege():
        pytest.skip("needs root: namespaces and tc")
    try:
        qdiscs.require(("tbf", "htb", "bfifo"))
    except MachineError as error:
        pytest.skip(str(error))
    chosen = f"f{os.getpid() % 10**6}"
    yield chosen
    build.take_down(chosen)


def under_way(launch: Launch, name: str, folder: Path) -> Launched:
    """A replay that iterates on two nodes."""
    path = folder / "network.toml"
    path.write_text(f'name = "{name}"\n{NETWORK}')
    job = launch("--network", str(path), "--deadline-s", "5", "--", *REPLAY)
    job.wait_for_event("iteration")
    assert len(namespaces.standing(name)) == 3
    assert "CPU quotas in cores: a 0.45, b 0.45; kept by " in job.output
    return job


def test_a_server_is_killed(launch: Launch, name: str, tmp_path: Path) -> None:
    job = under_way(launch, name, tmp_path)
    os.kill(job.pid("server", "b"), signal.SIGKILL)
    code, _ = job.end()
    assert code == 128 + signal.SIGKILL
    assert "server b was killed by SIGKILL" in job.verdict()
    assert namespaces.standing(name) == []
    assert cgroups.standing(name) == []
    job.assert_nothing_left(within_s=0)
