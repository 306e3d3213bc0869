"""How a failure is put into words, and how it travels. This is the one test that knows the words."""

import msgspec
import pytest

from nalb.errors import CheckpointError, InputError, StoreError, one_line
from nalb.failures import DETAIL_MOST, Cause, Failure, JobFailed, Moment, Phase, carried, cause_of, of_script, render
from nalb.process.last_words import FAILURE, failure_in

WHOLE = Failure(
    cause=Cause.SILENT, detail="has not reported", role="worker", node="n1", phase=Phase.EXCHANGE, iteration=3
)


@pytest.mark.parametrize(
    ("leave_out", "says"),
    [
        ((), "phase exchange of iteration 3: worker n1 has not reported"),
        (("phase",), "iteration 3: worker n1 has not reported"),
        (("iteration",), "phase exchange: worker n1 has not reported"),
        (("phase", "iteration"), "worker n1 has not reported"),
        (("role", "node"), "phase exchange of iteration 3: has not reported"),
        (("role", "node", "phase", "iteration"), "has not reported"),
    ],
)
def test_a_failure_in_words(leave_out: tuple[str, ...], says: str) -> None:
    failure = msgspec.structs.replace(WHOLE, **dict.fromkeys(leave_out))
    assert render(failure) == says
    assert str(JobFailed(failure, 7, "its log: x")) == f"{says}; its log: x"
    assert str(JobFailed(failure)) == says


def test_what_a_process_tells_its_launcher_is_taken_out_of_its_output() -> None:
    line = FAILURE + msgspec.json.encode(WHOLE).decode()
    assert failure_in(line) == ("", WHOLE)
    assert failure_in(f"half a line{line}") == ("half a line", WHOLE)
    assert failure_in("all is well") == ("all is well", None)
    assert failure_in(line[:-5]) == (line[:-5], None)  # another thread wrote in between: nothing is hidden


def test_words_that_no_message_can_carry_are_cut_and_replaced() -> None:
    failure = msgspec.structs.replace(WHOLE, detail="é\udcff" * DETAIL_MOST)
    assert carried(failure).detail == "é?" * (DETAIL_MOST // 2)
    steers = msgspec.structs.replace(WHOLE, detail="bad \x1b[2J\x1b]0;title\x07\r\n\u202eé")
    assert carried(steers).detail == "bad ?[2J?]0;title?  ?é"
    assert msgspec.json.decode(msgspec.json.encode(carried(failure)), type=Failure) == carried(failure)


@pytest.mark.parametrize("cause", Cause)
def test_whom_a_restart_may_blame(cause: Cause) -> None:
    wrong_input = {Cause.INPUT, Cause.BATCHING, Cause.TOKENS, Cause.REFUSED, Cause.NO_STORE}
    nobody = {Cause.UNREACHABLE, Cause.NO_COORDINATOR, Cause.UNEQUAL} | wrong_input
    failure = msgspec.structs.replace(WHOLE, cause=cause)
    assert failure.culprit == (None if cause in nobody else "n1")
    assert failure.is_wrong_input == (cause in wrong_input)


def test_what_ends_every_attempt_alike_is_wrong_input() -> None:
    wrong = (InputError("no"), StoreError("no"), CheckpointError("of another net"))
    assert [cause_of(error, Cause.SCRIPT) for error in wrong] == [Cause.INPUT] * 3
    others = (ValueError("no"), CheckpointError("no room", writing=3), None)
    assert [cause_of(error, Cause.SCRIPT) for error in others] == [Cause.SCRIPT] * 3


@pytest.mark.parametrize(
    ("error", "cause", "when"),
    [
        (ValueError("no"), Cause.SCRIPT, (None, None)),
        (None, Cause.SCRIPT, (None, None)),
        (CheckpointError("of another net"), Cause.INPUT, (None, None)),
        (CheckpointError("no room", writing=3), Cause.CHECKPOINT, (Phase.CHECKPOINT, 3)),
    ],
)
def test_how_a_script_ends(error: Exception | None, cause: Cause, when: Moment) -> None:
    failure = of_script(error, "failed")
    assert (failure.cause, (failure.phase, failure.iteration)) == (cause, when)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("no data"), "ValueError: no data"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (AssertionError(""), "AssertionError"),
        (RuntimeError("Error(s) in loading:\n\tsize mismatch\n"), "RuntimeError: Error(s) in loading: size mismatch"),
        (
            ValueError(
                "Caught ValueError in process 0.\nOriginal Traceback (most recent call last):\n  File x\nValueError: odd\n"
            ),
            "ValueError: odd (Caught ValueError in process 0)",
        ),
    ],
)
def test_an_error_in_one_line(error: BaseException, says: str) -> None:
    assert one_line(error) == says
