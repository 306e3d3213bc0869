"""A link that is cut while a worker computes a token, at two of its levels: the job ends in time, and names somebody."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nalb.failures import Cause
from netem import build, qdiscs, rootless
from netem.namespaces import hub_namespace, standing
from netem.network_file import load_network
from netem.wires import port_name
from tests.launch.conftest import END_LIMIT_S, ROOT, Launch

pytestmark = [
    pytest.mark.root,
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
]
NETWORK = 'name = "{}"\n[defaults]\nup_mbps = 200\ndown_mbps = 200\n[[nodes]]\nname = "n0"\n[[nodes]]\nname = "n1"\n'
WORKERS = str(ROOT / "tests/kvstore/fela_workers.py")


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Path]:
    """A network file whose name is this run's; whatever of it is left is removed."""
    if not rootless.has_privilege():
        pytest.skip("needs root: namespaces and tc")
    qdiscs.require(("tbf", "htb", "bfifo"))
    name = f"k{os.getpid() % 10**6}"
    path = tmp_path / "network.toml"
    path.write_text(NETWORK.format(name))
    yield path
    build.take_down(name)


@pytest.mark.parametrize("level", [1, 4])  # processes end at the others: tests/kvstore/test_fela.py
def test_a_link_that_is_cut_within_a_token_ends_the_job(launch: Launch, network: Path, level: int) -> None:
    flags = ("--parallel", "fela", "--weights", "1,1,1", "--deadline-s", "5")
    fault = ("--fault", "wait", "--level", str(level), "--fault-at", "3")
    job = launch("--network", str(network), *flags, "--", sys.executable, WORKERS, *fault)
    job.wait_for("in token")
    loaded = load_network(network)
    link = ["ip", "-n", hub_namespace(loaded.name), "link", "set", port_name(loaded, "n1"), "down"]
    subprocess.run(link, check=True)
    code, _ = job.end(2 * END_LIMIT_S)  # the silence and the ends alone take 8 s
    assert code == 4, job.output
    failure = job.failure()
    assert failure.cause in (Cause.SILENT, Cause.UNREACHABLE, Cause.NO_COORDINATOR)
    assert failure.node is not None
    assert standing(loaded.name) == []
    job.assert_nothing_left()
