"""The peer: its driver against workers played by hand, and the real ring in a real network where PyTorch is installed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import zmq

from nalb.cli.main import run
from nalb.compare.peers.messages import End, Iterated, Joined, Run
from nalb.compare.ring import Ring, require_torch, ring_program
from nalb.errors import MachineError
from nalb.events import BlockEvent, IdleEvent, IterationEvent, decode_line
from nalb.launch.machine_env import machine_environment
from nalb.launch.network import IN_NAMESPACES
from nalb.launch.roles import Place
from nalb.options import JobOptions
from nalb.planning.nodes import Node
from nalb.protocol import wire
from nalb.reporting.run_file import read_events, read_run
from tests.cli.test_compare_command import NAME, NETWORK, nalb

NODES = [Node("a"), Node("s", is_worker=False), Node("b")]
HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_an_absent_torch_is_one_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    with pytest.raises(MachineError, match=r"gloo' needs the extra peers \(torch\): pip install -e '.\[peers\]' "):
        require_torch()


def test_training_has_no_ring(tmp_path, capsys):
    words = ["--network", "wan4-static", "--train", "cnn", "--schemes", "gloo", "--out", str(tmp_path / "run")]
    code = run(["compare", *words])
    told = capsys.readouterr().err
    assert (code, told.count("\n")) == (2, 1)
    assert "'gloo' runs replays only" in told


def test_every_worker_finds_the_first_one_on_the_nodes_own_interface():
    places = [Place("a", "10.0.0.1"), Place("s", "10.0.0.3", is_worker=False), Place("b", "10.0.0.2")]
    options = JobOptions(9111, observers="ipc://x")
    specs = ring_program("mobilenet", 20.0).specs(places, options, {}, None, IN_NAMESPACES)
    assert [(s.node, s.role, s.environment["RANK"]) for s in specs] == [("a", "worker", "0"), ("b", "worker", "1")]
    for spec in specs:
        assert set(machine_environment(spec.environment, {"LD_PRELOAD": "own.so"})) == {"PYTHONPATH"}  # no shim
        told = {
            name: spec.environment[name] for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
        }
        assert told == {
            "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "9111", "GLOO_SOCKET_IFNAME": "eth0"
        }  # fmt: skip


def test_the_driver_turns_workers_reports_into_events(tmp_path):
    address, samples = f"ipc://{tmp_path}/ring", tmp_path / "samples.jsonl"
    with zmq.Context() as context, Ring(address, NODES, lambda told: 8e6 / told.up["a"], samples) as ring:
        workers = []
        for rank in range(2):
            workers.append(context.socket(zmq.DEALER))
            workers[-1].setsockopt(zmq.IDENTITY, str(rank).encode())
            workers[-1].setsockopt(zmq.LINGER, 0)
            workers[-1].connect(address)
            workers[-1].send(msgspec.json.encode(Joined()))
        try:
            assert isinstance(next(ring.events(10)), IdleEvent)
            rates = {"a": 1e6, "b": 2e6, "s": 4e6}
            ring.send(wire.Configured(rates, rates, []))
            ring.send(wire.RunBlock("gloo", 1))
            for rank, worker in enumerate(workers):
                assert msgspec.json.decode(worker.recv(), type=Run | End) == Run(1)
                worker.send(msgspec.json.encode(Iterated(10.0 + rank, 13.0, 4.0)))
            events = ring.events(10)
            iteration, block = next(events), next(events)
            assert (type(iteration), type(block)) == (IterationEvent, BlockEvent)
            assert iteration.communication_s == {"a": 3.0, "b": 2.0}
            assert iteration.iteration_s == {"a": 4.0, "b": 4.0}
            assert iteration.bound_s == pytest.approx(8.0)
            assert decode_line(samples.read_bytes()) == iteration
            ring.send(wire.EndJob())
            assert all(msgspec.json.decode(worker.recv(), type=Run | End) == End() for worker in workers)
        finally:
            for worker in workers:
                worker.close()


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path):
    full = pytest.raises(MachineError, match=r"^/dev/full: No space left on device: make room")
    with Ring(f"ipc://{tmp_path}/ring", [Node("a")], lambda _: 1.0, Path("/dev/full")) as ring, full:
        ring.complete([Iterated(1.0, 2.0, 1.0)])


@pytest.mark.mxnet
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed: pip install -e '.[peers]'")
def test_the_ring_takes_turns_with_nalbs_schemes_and_is_timed_alike(tmp_path):
    (tmp_path / "net.toml").write_text(NETWORK)
    out = tmp_path / "run"
    done = nalb("compare", "--network", str(tmp_path / "net.toml"), "--replay", "mobilenet",
                "--schemes", "average,gloo", "--iterations", "3", "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads((out / "run.json").read_text())
    for result in run["schemes"].values():
        assert len(result["communication_s"]) == 3
        assert (
            min(result["communication_s"]) > run["bound_s"]
        )  # 2 (N-1)/N M on each link: for 3 nodes above the bound M
        # Who ends first begins first: an iteration may be as much shorter as ends lie apart. What one lacks, the next one has.
        assert sum(result["iteration_s"]) >= 0.95 * sum(result["communication_s"])
    assert (
        f"nalb-{NAME}" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.mxnet
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_a_comparison_where_not_every_node_is_worker_and_server(tmp_path):
    roles = 'nodes = [{name = "w", server = false}, {name = "s", worker = false}, {name = "ws"}]'
    (tmp_path / "net.toml").write_text(f'name = "{NAME}"\ndefaults = {{up_mbps = 200, down_mbps = 200}}\n{roles}')
    out = tmp_path / "run"
    schemes = ["stock", "average", "exact", *(["gloo"] if HAS_TORCH else [])]
    done = nalb("compare", "--network", str(tmp_path / "net.toml"), "--replay", "mobilenet",
                "--schemes", ",".join(schemes), "--iterations", "3", "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record, events = read_run(out), read_events(out)
    assert record.bound_s == pytest.approx(12_868_904 / 25e6)  # a worker's whole model at 200 Mbit/s
    for name, result in record.schemes.items():
        assert min(result.communication_s) > record.bound_s, name
        assert result.samples_per_min == pytest.approx(60 * 32 * 2 * 3 / sum(result.iteration_s)), name  # two workers
    iterations = [event for event in events if isinstance(event, IterationEvent)]
    assert len(iterations) == 3 * len(schemes)
    assert all(set(event.communication_s) == {"w", "ws"} for event in iterations)
    assert all(event.bound_s == pytest.approx(record.bound_s) for event in iterations)
    shares = [event.shares for event in iterations if event.scheme in ("average", "exact")]
    assert all(one["w"] == 0 < min(one["s"], one["ws"]) for one in shares)
    assert run(["simulate", "--run", str(out), "--json"]) == 0
    assert run(["report", str(out)]) == 0
