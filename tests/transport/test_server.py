"""The coordinator's shell: its file of events."""

from collections import deque
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from nalb.events import FailureEvent, ReadyEvent
from nalb.failures import Cause, Failure
from nalb.launch.run_dir import append_event
from nalb.reporting.run_file import read_events
from nalb.transport.server import _flush, _open_log
from tests.process.test_line_file import files_of_at_most

READY = ReadyEvent(at_s=1.0, nodes=["n0"], servers=["n0"])
FAILURE = FailureEvent(at_s=2.0, failure=Failure(cause=Cause.SILENT, detail="x", role="worker", node="n0"))


def test_an_event_that_does_not_fit_is_an_error_and_what_follows_is_read(tmp_path, caplog):
    path = tmp_path / "samples.jsonl"
    state = SimpleNamespace(outbox=deque(), events=[READY])
    with ExitStack() as stack:
        log = _open_log(SimpleNamespace(samples_path=str(path)), stack)
        _flush(None, state, log)
        state.events.append(READY)
        with files_of_at_most(path.stat().st_size + 20), pytest.raises(OSError, match="too large"):
            _flush(None, state, log)
    append_event(path, FAILURE)  # the launcher's, once there is room
    assert read_events(tmp_path) == [READY, FAILURE]
    assert f"{path}, line 2 is torn" in caplog.text
