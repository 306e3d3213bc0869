"""The calls as they are where Python has them, and as they are made where it was built without them."""

import os
import select
import signal
import subprocess
import sys

import pytest

from nalb.errors import MachineError
from nalb.process import kernel_calls


@pytest.fixture(params=[True, False], ids=["by Python", "by the C library"])
def _is_built_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.delattr(os, "MFD_CLOEXEC", raising=False)
        monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)


@pytest.mark.usefixtures("_is_built_in")
def test_a_process_is_watched_and_signalled():
    with subprocess.Popen(["sleep", "60"]) as process:
        descriptor = kernel_calls.open_process(process.pid)
        assert not os.get_inheritable(descriptor)
        assert select.select([descriptor], [], [], 0)[0] == []
        kernel_calls.send_signal(descriptor, signal.SIGTERM)
        assert select.select([descriptor], [], [], 10)[0] == [descriptor]
    assert process.returncode == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        kernel_calls.send_signal(descriptor, signal.SIGTERM)
    with pytest.raises(ProcessLookupError):
        kernel_calls.open_process(process.pid)
    os.close(descriptor)


@pytest.mark.usefixtures("_is_built_in")
def test_a_file_in_memory_is_not_inherited():
    descriptor = kernel_calls.memory_file("test")
    os.ftruncate(descriptor, 10)
    look = f"import os; os.fstat({descriptor})"
    assert subprocess.run([sys.executable, "-c", look], stderr=-3, close_fds=False).returncode == 1
    os.close(descriptor)


def test_a_machine_without_the_call_is_named(monkeypatch):
    def refuse(_: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    with pytest.raises(MachineError, match="use Linux 5"):
        kernel_calls.open_process(1)
