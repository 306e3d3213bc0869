"""Replays on the plane, each in a process of its own, as `nalb compare` starts them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.errors import MachineError
from nalb.plane.replay import BUCKET_BYTES, FIRST_BUCKET_BYTES, buckets
from nalb.process.own_program import own_argv
from nalb.workloads import NAMES, load
from tests.failures import AS_LAUNCHED, told_in, who
from tests.plane.plain_front import LIMIT_S
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_buckets(name):
    tensors = load(name)
    sizes = buckets(tensors)
    assert sum(sizes) == sum(tensor.elements for tensor in tensors)
    largest = max(tensor.size_bytes for tensor in tensors)
    assert FIRST_BUCKET_BYTES <= 4 * sizes[0] < FIRST_BUCKET_BYTES + largest
    assert all(BUCKET_BYTES <= 4 * size < BUCKET_BYTES + largest for size in sizes[1:-1])


def test_a_coordinator_whose_port_is_taken_names_its_node():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        argv = own_argv("nalb.plane.coordinator", endpoint, "2", "n7", "--alone")
        done = subprocess.run(argv, env=AS_LAUNCHED, stderr=subprocess.PIPE, text=True, check=False)
    failure = told_in(done.stderr)
    assert (done.returncode, who(failure)) == (MachineError.exit_code, ("scheduler", "n7"))
    assert f"cannot listen on {endpoint}" in failure.detail


@pytest.mark.jobs
def test_replays_sum_and_leave():
    """The sums are right, whatever the scheme does with links that do not matter; without a ring nothing is left to one."""
    size, argv = 3, own_argv("nalb.plane.coordinator", "127.0.0.1:0", "3", "n0", "--no-ring")
    base = {name: value for name, value in os.environ.items() if not name.startswith(("NALB_", "DMLC_"))}
    base |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size)}
    with subprocess.Popen(argv, env=base, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as coordinator:
        base["NALB_COORDINATOR"] = f"127.0.0.1:{coordinator.stdout.readline().strip()}"
        base["NALB_AGENTS"] = ",".join(f"127.0.0.1:{port}" for port in free_ports(size))
        command = [sys.executable, "-P", "-m", "nalb.plane.replay", "mobilenet", "--iterations", "12", "--verify"]
        ranks = [subprocess.Popen(command, env=base | {"RANK": str(rank)}) for rank in range(size)]
        try:
            assert [rank.wait(LIMIT_S) for rank in ranks] == [0] * size
        finally:
            for rank in ranks:
                rank.kill()
            coordinator.communicate("end\n", timeout=LIMIT_S)
    assert coordinator.returncode == 0
