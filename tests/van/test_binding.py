"""The Python side: what a process needs, what is refused, and that the van leaves strangers alone."""

import subprocess
from pathlib import Path

import pytest

from kvstore_patch import van
from nalb.errors import InputError, MachineError

PYZMQ_EXCHANGE = """
import zmq
from kvstore_patch.van import Van
with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealer.setsockopt(zmq.IDENTITY, b"ps9")
    dealer.connect(f"tcp://127.0.0.1:{port}")
    for copy in (True, False):
        dealer.send_multipart([b"NALBFC01"], copy=copy)
        dealer.send_multipart([b"meta", b"data" * 10000], copy=copy)
        assert [bytes(f) for f in router.recv_multipart(copy=copy)] == [b"ps9", b"NALBFC01"]
        assert [bytes(f) for f in router.recv_multipart(copy=copy)] == [b"ps9", b"meta", b"data" * 10000]
loaded = Van.loaded()
assert not any(loaded.counters().values()), loaded.counters()
assert (loaded.drain(), loaded.drops, loaded.self_id, loaded.transport) == ([], 0, -1, "")
loaded.set_forecasts(False)
"""


def test_library_is_built_and_exports_only_its_interface() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(van.library_path())], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    api = (
        "abi",
        "in_front",
        "transport",
        "drain",
        "drops",
        "mark",
        "first_sent_ns",
        "self_id",
        "set_forecasts",
        "counters",
    )
    hooks = ("socket", "close", "bind", "connect", "setsockopt", "msg_send", "msg_recv")
    assert names == {f"nalb_van_{name}" for name in api} | {f"zmq_{name}" for name in hooks}


def test_header_and_binding_agree() -> None:
    header = (Path(van.__file__).parent / "van.h").read_text()
    counted = header.split("#define NALB_COUNTERS(X)")[1].split("struct nalb_counters")[0]
    assert tuple(part.split(")")[0] for part in counted.split("X(")[1:]) == van.COUNTERS
    assert f"#define NALB_VAN_ABI {van.ABI} " in header


def test_preload_keeps_what_is_there() -> None:
    ours = str(van.library_path())
    assert van.preload_environment({})["LD_PRELOAD"] == ours
    assert van.preload_environment({"LD_PRELOAD": "/a.so:/b.so /c.so"})["LD_PRELOAD"] == f"{ours} /a.so /b.so /c.so"
    pyzmq = van.preload_environment({"LD_PRELOAD": "/a.so"}, transport="pyzmq")
    assert pyzmq["LD_PRELOAD"] == f"{ours} {van.pyzmq_library_path()} /a.so"
    assert pyzmq["NALB_VAN_TRANSPORT"] == "pyzmq"
    assert van.preload_environment(pyzmq, transport="pyzmq") == pyzmq
    assert van.preload_environment(pyzmq)["LD_PRELOAD"] == f"{ours} /a.so"


def test_forecasts_can_be_asked_off() -> None:
    assert van.preload_environment({}, forecasts=False)["NALB_VAN_FORECASTS"] == "0"


def test_unknown_transport_is_refused() -> None:
    with pytest.raises(InputError, match="transport 'rdma'"):
        van.preload_environment({}, transport="rdma")


def test_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(van, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(MachineError, match="pip install"):
        van.library_path()


def test_a_path_that_ld_preload_cannot_name_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(van, "library_path", lambda: tmp_path / "my van.so")
    with pytest.raises(MachineError, match="LD_PRELOAD cannot name"):
        van.preload_environment({})


def test_a_process_without_the_van_is_refused() -> None:
    with pytest.raises(MachineError, match="not preloaded"):
        van.Van.loaded()


LOAD = "try:\n    van.Van.loaded()\nexcept Exception as error:\n    print(type(error).__name__, error)"


def test_another_version_is_refused(python_under_van) -> None:
    said = python_under_van(f"from kvstore_patch import van\nvan.ABI = 99\n{LOAD}")
    assert said.startswith("MachineError the preloaded van has ABI 3, this package needs 99")


def test_a_library_in_front_is_refused(python_under_van) -> None:
    in_front = f"{van.pyzmq_library_path()} {van.library_path()}"
    said = python_under_van(f"from kvstore_patch import van\n{LOAD}", LD_PRELOAD=in_front)
    assert said.startswith("MachineError another library catches zmq_* calls before the van")


@pytest.mark.parametrize("wanted", van.TRANSPORTS)
def test_a_transport_other_than_asked_for_is_refused(python_under_van, wanted: str) -> None:
    other = van.preload_environment({}, "mxnet" if wanted == "pyzmq" else "pyzmq")
    said = python_under_van(f"from kvstore_patch import van\n{LOAD}", **other | {"NALB_VAN_TRANSPORT": wanted})
    assert said.startswith(f"MachineError transport {wanted}, but")


@pytest.mark.parametrize("transport", van.TRANSPORTS)
def test_pyzmq_is_left_alone(python_under_van, transport: str) -> None:
    python_under_van(PYZMQ_EXCHANGE, **van.preload_environment({}, transport))


@pytest.mark.parametrize("transport", van.TRANSPORTS)
@pytest.mark.parametrize("command", [["/bin/true"], ["/bin/sh", "-c", "true; /bin/true | cat"]], ids=["true", "sh"])
def test_processes_without_zeromq_notice_nothing(command: list[str], transport: str) -> None:
    done = subprocess.run(
        command, env=van.preload_environment({}, transport), capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_python_without_mxnet_notices_nothing(python_under_van) -> None:
    assert python_under_van("print('quiet')") == "quiet\n"
