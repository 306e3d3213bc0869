"""One node of a job whose other nodes another launcher starts."""

import importlib.util
import os
import shlex
from pathlib import Path

import pytest

from nalb.cli.main import run
from nalb.errors import InputError
from nalb.failures import Cause
from nalb.launch.encryption import Encryption
from nalb.launch.one_node import OneNode, number_of
from nalb.transport.keys import make_keys, write_keys
from tests.failures import who
from tests.launch.conftest import START_LIMIT_S, STEPS, Launch

ROOT_PORT = "127.0.0.1:9471"


def found(root: str, nodes: int = 3, rank: int = 1, **environ: str) -> OneNode:
    return OneNode.found(root, nodes, rank, {"NALB_NODE": "x", **environ}, lambda _: None)


def test_a_node_is_told_only_what_is_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NALB_NODE", "x")
    monkeypatch.setenv("NALB_ADDRESS", "192.0.2.7")
    monkeypatch.setenv("MY_RANK", "2")
    words = ["launch", "--root", "192.0.2.1:9500", "--nodes", "3", "--plain", "--framework"]
    seen: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for framework in ("mxnet", "torch"):
        for rank in ("0", "MY_RANK"):
            assert run([*words, framework, "--rank", rank, "--print-env", "--", "true"]) == 0
            lines = capsys.readouterr().out.splitlines()[1:]
            seen[framework, rank] = {
                title.removeprefix("# "): dict(word.partition("=")[::2] for word in shlex.split(line) if "=" in word)
                for title, line in zip(lines[::2], lines[1::2], strict=True)
            }
    processes = {key: list(value) for key, value in seen.items()}
    assert processes["mxnet", "0"] == ["scheduler x", "server x", "worker x"]
    assert processes["mxnet", "MY_RANK"] == ["server x", "worker x"]
    assert processes["torch", "0"] == ["scheduler x", "worker x"]
    assert processes["torch", "MY_RANK"] == ["worker x"]
    worker = seen["mxnet", "MY_RANK"]["worker x"]
    assert (worker["DMLC_PS_ROOT_URI"], worker["DMLC_PS_ROOT_PORT"]) == ("192.0.2.1", "9500")
    assert (worker["DMLC_NODE_HOST"], worker["NALB_COORDINATOR"]) == ("192.0.2.7", "192.0.2.1:9501")
    assert (worker["DMLC_NUM_WORKER"], worker["DMLC_NUM_SERVER"], worker["NALB_ADDRESSES"]) == ("3", "3", "")
    assert seen["mxnet", "0"]["worker x"]["DMLC_PS_ROOT_URI"] == "192.0.2.7"  # node 0 is where it is itself
    rank = seen["torch", "MY_RANK"]["worker x"]
    assert (rank["RANK"], rank["WORLD_SIZE"], rank["MASTER_ADDR"], rank["MASTER_PORT"]) == (
        "2",
        "3",
        "192.0.2.1",
        "9500",
    )
    assert "OMP_NUM_THREADS" not in rank or rank["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--root", "127.0.0.1", "--nodes", "2"], "add --nodes and --rank"),
        (["--local", "2", "--rank", "0"], "add --root"),
        (["--root", "127.0.0.1", "--nodes", "2", "--rank", "2"], "--rank 2: 2 nodes have ranks 0 to 1"),
        (["--root", "127.0.0.1", "--nodes", "0", "--rank", "0"], "--nodes 0"),
        (["--root", "127.0.0.1", "--nodes", "NO_SUCH", "--rank", "0"], "--nodes NO_SUCH: it is neither"),
        (["--root", "127.0.0.1", "--nodes", "MY_WORDS", "--rank", "0"], "MY_WORDS is 'three'"),
        (["--root", "127.0.0.1:0", "--nodes", "2", "--rank", "0"], "--root 127.0.0.1:0"),
        (["--root", "a b", "--nodes", "2", "--rank", "0"], "--root a b"),
        (["--root", "127.0.0.1", "--nodes", "2", "--rank", "0", "--max-restarts", "1"], "leave out --max-restarts"),
        (["--root", "127.0.0.1", "--nodes", "2", "--rank", "0", "--framework", "torch"], "--root needs keys that last"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nalb.launch.one_node.STARTUP_S", 0.0)
    monkeypatch.setenv("MY_WORDS", "three")
    assert run(["launch", *words, "--", "true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_name_that_leads_back_to_this_machine_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Debian, whose /etc/hosts has 127.0.1.1 for the machine's own name."""
    monkeypatch.setattr("socket.gethostbyname", lambda _: "127.0.1.1")
    monkeypatch.setattr("nalb.process.address.towards", lambda _: "127.0.1.1")
    with pytest.raises(InputError, match=r"^--root n0 leads to 127\.0\.1\.1 .* set NALB_ADDRESS"):
        found("n0", rank=0)
    assert found("n0", rank=0, NALB_ADDRESS="192.0.2.7").root == "192.0.2.7"


def test_it_waits_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of pods are known once these have an address."""
    answers, told = iter([OSError("not yet"), OSError("not yet"), "127.0.0.1"]), []

    def look_up(_: str) -> str:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("socket.gethostbyname", look_up)
    monkeypatch.setattr("nalb.launch.one_node.LOOK_S", 0.0)
    node = OneNode.found("localhost:9471", 2, 1, {}, told.append)
    assert (node.root, node.port, len(told)) == ("127.0.0.1", 9471, 1)


def test_keys_are_of_this_node_at_this_address(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", make_keys({"x": "127.0.0.1", "y": "127.0.0.2"}))
    encryption = Encryption(True, str(tmp_path / "keys"))
    found(ROOT_PORT).check_keys(encryption)
    with pytest.raises(InputError, match=r"is for 127\.0\.0\.1, and this node is at 127\.0\.0\.9"):
        found(ROOT_PORT, NALB_ADDRESS="127.0.0.9").check_keys(encryption)
    with pytest.raises(InputError, match=r"z\.keys: cannot be read"):
        OneNode.found(ROOT_PORT, 2, 1, {"NALB_NODE": "z"}, lambda _: None).check_keys(encryption)


def test_a_number_may_be_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "5")
    assert (number_of("--rank", "SLURM_PROCID"), number_of("--rank", "3")) == (5, 3)


@pytest.mark.jobs
@pytest.mark.mxnet
@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
def test_nodes_started_one_by_one_meet_and_a_failed_one_ends_all(launch: Launch) -> None:
    words = ["--root", ROOT_PORT, "--nodes", "2", "--rank", "MY_RANK", "--plain", "--deadline-s", "5", "--", *STEPS]
    first, second = (
        launch(
            *words,
            *("--fault", "exit-3", "--node", "m1"),
            NALB_NODE=f"m{rank}",
            NALB_ADDRESS=f"127.0.0.{rank + 1}",
            MY_RANK=str(rank),
        )
        for rank in range(2)
    )
    second.wait_for("step 3")
    second.run_dir /= "m1"  # nodes may share --out
    assert second.end(START_LIMIT_S)[0] == 3
    assert who(second.failure()) == ("worker", "m1")
    assert first.end()[0] == 4
    assert "[m0 worker] " in first.output
    failure = first.failure()
    assert (failure.cause, failure.node) == (Cause.SCRIPT, "m1")  # as the coordinator has told
    for job in (first, second):
        job.assert_nothing_left()
