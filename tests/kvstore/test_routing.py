"""Sums on real ps-lite processes while plans and MXNet's own routing take turns."""

import os
import sys

import pytest

from nalb.launch.ports import free_pair
from nalb.launch.roles import Place, process_specs
from nalb.launch.supervisor import Job
from nalb.options import JobOptions
from nalb.protocol import wire
from nalb.transport.observer import Observer

TURNS = (("average", 3), ("stock", 3), ("exact", 2), ("stock", 2), ("average", 1))


@pytest.mark.mxnet
@pytest.mark.parametrize(
    "script", [["-m", "kvstore_patch.roles.replay", "mobilenet", "--verify"], ["WORKERS", "words_as_keys"]]
)
def test_sums_are_right_whoever_routes(tmp_path, script):
    """The worker checks each one; both ways of routing use the same arrays and servers. Some plans are sent ahead."""
    address = f"ipc://{tmp_path / 'observers'}"
    workers = os.path.join(os.path.dirname(__file__), "workers.py")
    command = [sys.executable, *(workers if word == "WORKERS" else word for word in script)]
    with free_pair("127.0.0.1") as port:
        options = JobOptions(port, "exact", observers=address, hold=True)
        specs = process_specs([Place(f"n{i}", "127.0.0.1") for i in range(2)], command, options, os.environ)
        with (
            Job(specs, lambda spec: list(spec.argv), os.environ, tmp_path / "logs") as job,
            Observer(address) as observer,
        ):
            for scheme, iterations in TURNS:
                observer.send(wire.RunBlock(scheme, iterations))
            observer.send(wire.EndJob())
            job.wait()
