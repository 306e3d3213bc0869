"""The Python side: what a process needs, what is refused, and that the shim leaves strangers alone."""

import subprocess
from pathlib import Path

import pytest

from kvstore_patch import shim
from nalb.errors import InputError, MachineError

PYZMQ_EXCHANGE = """
import zmq
from kvstore_patch.shim import Shim
with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealer.setsockopt(zmq.IDENTITY, b"ps9")
    dealer.connect(f"tcp://127.0.0.1:{port}")
    for copy in (True, False):
        dealer.send_multipart([b"NALBFC01"], copy=copy)
        dealer.send_multipart([b"meta", b"data" * 10000], copy=copy)
        assert [bytes(f) for f in router.recv_multipart(copy=copy)] == [b"ps9", b"NALBFC01"]
        assert [bytes(f) for f in router.recv_multipart(copy=copy)] == [b"ps9", b"meta", b"data" * 10000]
loaded = Shim.loaded()
assert not any(loaded.counters().values()), loaded.counters()
assert (loaded.drain(), loaded.drops, loaded.self_id, loaded.transport) == ([], 0, -1, "")
loaded.set_forecasts(False)
"""


def test_library_is_built_and_exports_only_its_interface() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(shim.library_path())], capture_output=True, text=True, check=True
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
    hooks = ("socket", "close", "bind", "connect", "setsockopt", "msg_send", "msg_recv", "msg_more")
    assert names == {f"nalb_shim_{name}" for name in api} | {f"zmq_{name}" for name in hooks}


def test_header_and_binding_agree() -> None:
    header = (Path(shim.__file__).parent / "shim.h").read_text()
    counted = header.split("#define NALB_COUNTERS(X)")[1].split("struct nalb_counters")[0]
    assert tuple(part.split(")")[0] for part in counted.split("X(")[1:]) == shim.COUNTERS
    assert f"#define NALB_SHIM_ABI {shim.ABI} " in header


def test_preload_keeps_what_is_there() -> None:
    ours = str(shim.library_path())
    assert shim.preload_environment({})["LD_PRELOAD"] == ours
    assert shim.preload_environment({"LD_PRELOAD": "/a.so:/b.so /c.so"})["LD_PRELOAD"] == f"{ours} /a.so /b.so /c.so"
    pyzmq = shim.preload_environment({"LD_PRELOAD": "/a.so"}, transport="pyzmq")
    assert pyzmq["LD_PRELOAD"] == f"{ours} {shim.pyzmq_library_path()} /a.so"
    assert pyzmq["NALB_SHIM_TRANSPORT"] == "pyzmq"
    assert shim.preload_environment(pyzmq, transport="pyzmq") == pyzmq
    assert shim.preload_environment(pyzmq)["LD_PRELOAD"] == f"{ours} /a.so"


def test_forecasts_can_be_asked_off() -> None:
    assert shim.preload_environment({}, forecasts=False)["NALB_SHIM_FORECASTS"] == "0"


def test_unknown_transport_is_refused() -> None:
    with pytest.raises(InputError, match="transport 'rdma'"):
        shim.preload_environment({}, transport="rdma")


def test_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shim, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(MachineError, match="pip install"):
        shim.library_path()


def test_a_path_that_ld_preload_cannot_name_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shim, "library_path", lambda: tmp_path / "my shim.so")
    with pytest.raises(MachineError, match="LD_PRELOAD cannot name"):
        shim.preload_environment({})


def test_a_process_without_the_shim_is_refused() -> None:
    with pytest.raises(MachineError, match="not preloaded"):
        shim.Shim.loaded()


LOAD = "try:\n    shim.Shim.loaded()\nexcept Exception as error:\n    print(type(error).__name__, error)"


def test_another_version_is_refused(python_under_shim) -> None:
    said = python_under_shim(f"from kvstore_patch import shim\nshim.ABI = 99\n{LOAD}")
    assert said.startswith(f"MachineError the preloaded shim has ABI {shim.ABI}, this package needs 99")


def test_a_library_in_front_is_refused(python_under_shim) -> None:
    in_front = f"{shim.pyzmq_library_path()} {shim.library_path()}"
    said = python_under_shim(f"from kvstore_patch import shim\n{LOAD}", LD_PRELOAD=in_front)
    assert said.startswith("MachineError another library catches zmq_* calls before the shim")


@pytest.mark.parametrize("wanted", shim.TRANSPORTS)
def test_a_transport_other_than_asked_for_is_refused(python_under_shim, wanted: str) -> None:
    other = shim.preload_environment({}, "mxnet" if wanted == "pyzmq" else "pyzmq")
    said = python_under_shim(f"from kvstore_patch import shim\n{LOAD}", **other | {"NALB_SHIM_TRANSPORT": wanted})
    assert said.startswith(f"MachineError transport {wanted}, but")


@pytest.mark.parametrize("transport", shim.TRANSPORTS)
def test_pyzmq_is_left_alone(python_under_shim, transport: str) -> None:
    python_under_shim(PYZMQ_EXCHANGE, **shim.preload_environment({}, transport))


@pytest.mark.parametrize("transport", shim.TRANSPORTS)
@pytest.mark.parametrize("command", [["/bin/true"], ["/bin/sh", "-c", "true; /bin/true | cat"]], ids=["true", "sh"])
def test_processes_without_zeromq_notice_nothing(command: list[str], transport: str) -> None:
    done = subprocess.run(
        command, env=shim.preload_environment({}, transport), capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_python_without_mxnet_notices_nothing(python_under_shim) -> None:
    assert python_under_shim("print('quiet')") == "quiet\n"
