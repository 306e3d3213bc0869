"""What follows a failure: which nodes, which attempt, and what is said."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from nalb.checkpoints import folder
from nalb.cli.main import run
from nalb.errors import InputError, JobError, MachineError
from nalb.failures import Cause, Failure, JobFailed, Phase, render
from nalb.launch.restarts import Attempt, RestartPolicy, after_failure, see_through
from nalb.launch.roles import Place
from tests.checkpoints.examples import example
from tests.failures import noted_in, when

NODES = [Place(f"n{i}", f"10.0.0.{i}") for i in range(3)]


def next_of(
    last_failed: str | None, failed: str | None, unreachable: Collection[str] = (), min_nodes: int | None = 2
) -> tuple[tuple[str, ...] | None, str]:
    """(nodes left out, reason) after an attempt that followed a failure of last_failed."""
    following, reason = after_failure(
        Attempt(1, Path("run/restart-1"), (), last_failed), failed, unreachable, NODES, min_nodes
    )
    return (None if following is None else following.left_out), reason


def test_one_failure_is_no_loss() -> None:
    assert next_of(None, "n1") == ((), "on all nodes")
    assert next_of("n2", "n1") == ((), "on all nodes")
    assert next_of(None, None) == ((), "on all nodes")


def test_two_in_a_row_are() -> None:
    assert next_of("n1", "n1") == (("n1",), "without n1")
    assert next_of("n1", "n1", min_nodes=None) == ((), "on all nodes")
    assert next_of(None, None, min_nodes=2) == ((), "on all nodes")


def test_an_unreachable_host_is_lost_at_once() -> None:
    assert next_of(None, "n0", {"n2"}) == (("n2",), "without n2")
    assert next_of("n1", "n1", {"n2"}, min_nodes=1) == (("n1", "n2"), "without n1, n2")


def test_too_few_are_left() -> None:
    left_out, reason = next_of("n1", "n1", {"n2"})
    assert left_out is None
    assert reason == "n1, n2 would be left out, and --min-nodes 2 needs more than 1"


@pytest.mark.parametrize("role", ["worker", "server"])
def test_the_only_worker_or_server_is_lost(role: str) -> None:
    others = [replace(node, **{f"is_{role}": False}) for node in NODES[1:]]
    following, reason = after_failure(Attempt(0, Path("run")), None, {"n0"}, [NODES[0], *others], 1)
    assert (following, reason) == (None, f"n0 would be left out, and no other node has a {role}")


def test_a_lost_node_stays_out() -> None:
    attempt = Attempt(2, Path("run/restart-2"), ("n1",), "n1")
    following, reason = after_failure(attempt, "n0", {"n1"}, NODES, 2)
    assert following == Attempt(3, Path("run/restart-3"), ("n1",), "n0")
    assert reason == "on the 2 nodes left"


def test_many_lost_nodes_are_counted() -> None:
    nodes = [Place(f"n{i}", "10.0.0.1") for i in range(1000)]
    lost = {node.name for node in nodes[1:]}
    attempt = Attempt(0, Path("run"))
    assert after_failure(attempt, None, lost, nodes, 1)[1].endswith("n9, n10 and 989 more")
    assert "n9, n10 and 989 more would be left out" in after_failure(attempt, None, lost, nodes, 2)[1]


def failed(code: int = 137, cause: Cause = Cause.ENDED, **moment: object) -> JobFailed:
    """A failure of worker n1's."""
    return JobFailed(Failure(cause=cause, detail="failed", role="worker", node="n1", **moment), code)


def run_job(
    tmp_path: Path, failures: list[Exception], policy: RestartPolicy, unreachable: Collection[str] = ()
) -> tuple[list[Attempt], list[str]]:
    """(attempts, what was said) of a job that fails so often and then ends well; the error, where it does not."""
    attempts, said, left = [], [], list(failures)

    def run(attempt: Attempt) -> None:
        attempts.append(attempt)
        if left:
            raise left.pop(0)

    last_dir = see_through(run, tmp_path, NODES, policy, lambda: unreachable, said.append, lambda _: None)
    assert last_dir == attempts[-1].run_dir
    return attempts, said


def test_restarts_say_where_the_job_goes_on(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    policy = RestartPolicy(3, 2, checkpoints)
    failure = failed(1)
    attempts, said = run_job(tmp_path, [failure], policy)
    assert [one.run_dir for one in attempts] == [tmp_path, tmp_path / "restart-1"]
    assert said == [
        f"nalb launch: {render(failure.failure)}; restart 1 of 3 on all nodes, "
        f"from where the script begins: no checkpoint of nalb's in {checkpoints}"
    ]
    for name, iteration in (("critic", 20), ("generator", 30)):
        (checkpoints / name).mkdir(parents=True)
        folder.write(checkpoints / name, example(iteration), "n0")
    (checkpoints / "empty").mkdir()
    assert run_job(tmp_path, [failure], policy)[1][0].endswith(
        "on all nodes, from iteration 20 of critic, iteration 30 of generator"
    )
    folder.write(checkpoints, example(40), "n0")
    folder.write(checkpoints, example(60), "n0").write_bytes(b"")
    attempts, said = run_job(tmp_path, [failure, failure], policy)
    assert [one.left_out for one in attempts] == [(), (), ("n1",)]
    assert said[1] == (
        f"nalb launch: {render(failure.failure)}; restart 2 of 3 without n1, "
        "from iteration 40 (epoch 1, batch 3) (1 damaged, skipped)"
    )


def test_a_restart_reads_only_the_beginning_of_a_checkpoint(tmp_path: Path) -> None:
    folder.write(tmp_path, example(40, 10_000_000), "n0")
    before = bytes_read()
    _, (said,) = run_job(tmp_path / "run", [failed()], RestartPolicy(1, None, tmp_path))
    assert said.endswith("from iteration 40 (epoch 1, batch 3)")
    assert bytes_read() - before < 10_000_000  # of 40,000,000


def bytes_read() -> int:
    """By this process, from anywhere."""
    words = Path("/proc/self/io").read_text(encoding="ascii").split()
    return int(words[words.index("rchar:") + 1])


def test_hosts_are_asked_only_where_a_node_may_be_left_out(tmp_path: Path) -> None:
    """Hosts that hang at a login take 20 s for every eight of them."""
    asked: list[int] = []

    def unreachable() -> set[str]:
        asked.append(1)
        return set()

    for min_nodes, times in ((None, 0), (2, 1)):
        left = [failed()]

        def run(_: Attempt, left: list[Exception] = left) -> None:
            if left:
                raise left.pop()

        see_through(
            run, tmp_path, NODES, RestartPolicy(1, min_nodes, None), unreachable, lambda _: None, lambda _: None
        )
        assert len(asked) == times


def test_an_interrupted_checkpoint_is_named_once(tmp_path: Path) -> None:
    policy = RestartPolicy(2, None, tmp_path)

    def run(attempt: Attempt) -> None:
        if attempt.number == 0:  # a run that was over long ago is none of this one's
            assert folder.cut_short(tmp_path) == {}
            (tmp_path / ".checkpoint-000000040.nalb.n1.writing").touch()
        if attempt.number < 2:
            raise failed()

    said: list[str] = []
    (tmp_path / ".checkpoint-000000020.nalb.n1.writing").touch()
    waited: list[float] = []
    (tmp_path / "run").mkdir()
    see_through(run, tmp_path / "run", NODES, policy, set, said.append, waited.append)
    assert waited == [1.0, 2.0]
    noted = [noted_in(tmp_path / "run" / name) for name in (".", "restart-1")]
    assert [when(failure) for failure in noted] == [(Phase.CHECKPOINT, 40), (None, None)]
    for number, (failure, line) in enumerate(zip(noted, said, strict=True), 1):
        assert line.startswith(f"nalb launch: {render(failure)}; restart {number}")


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (RestartPolicy(0, None, None), r"worker n1 failed\Z"),
        (RestartPolicy(1, None, None), r"worker n1 failed; restarts: all 1 are used\Z"),
        (
            RestartPolicy(5, 3, None),
            r"worker n1 failed; no restart: n1 would be left out, and --min-nodes 3 needs more than 2\Z",
        ),
    ],
)
def test_the_end_of_patience_has_the_last_exit_code(tmp_path: Path, policy: RestartPolicy, says: str) -> None:
    failures: list[Exception] = [failed(code) for code in (137, 7, 7)]
    with pytest.raises(JobError, match=says) as caught:
        run_job(tmp_path, failures, policy)
    assert caught.value.exit_code == (137 if policy.max_restarts == 0 else 7)


def test_no_room_for_a_restart(tmp_path: Path) -> None:
    """The job's own failure and its exit code are what counts."""
    (tmp_path / "restart-1").touch()
    with pytest.raises(JobError, match=r"^worker n1 failed; no restart: .*/restart-1: File exists\Z") as caught:
        run_job(tmp_path, [failed()], RestartPolicy(3, None, None))
    assert caught.value.exit_code == 137


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_folder_of_checkpoints_that_cannot_be_read_hides_no_failure(tmp_path: Path, restarts: int) -> None:
    checkpoints, attempts = tmp_path / "checkpoints", []

    def run(attempt: Attempt) -> None:
        attempts.append(attempt)
        checkpoints.touch()  # a file where the folder was
        raise failed(7)

    policy = RestartPolicy(restarts, None, checkpoints)
    with pytest.raises(JobError, match=r"^worker n1 failed\b") as caught:
        see_through(run, tmp_path, NODES, policy, set, lambda _: None, lambda _: None)
    assert (caught.value.exit_code, len(attempts)) == (7, restarts + 1)


@pytest.mark.parametrize("error", [InputError("no"), MachineError("no"), KeyboardInterrupt()])
def test_what_no_restart_would_mend(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)):
        run_job(tmp_path, [error], RestartPolicy(3, 1, None))


@pytest.mark.parametrize("cause", [Cause.INPUT, Cause.BATCHING])
def test_wrong_input_ends_the_job_at_once(tmp_path: Path, cause: Cause) -> None:
    with pytest.raises(JobError, match=r"^worker n1 failed; no restart: it would end so again\Z") as caught:
        run_job(tmp_path, [failed(7, cause)], RestartPolicy(3, 1, None))
    assert caught.value.exit_code == 7
    assert not (tmp_path / "restart-1").exists()


@pytest.mark.parametrize(
    "policy",
    [RestartPolicy(-1, None, None), RestartPolicy(0, 2, None), RestartPolicy(1, 0, None), RestartPolicy(1, 4, None)],
)
def test_mistakes(policy: RestartPolicy) -> None:
    with pytest.raises(InputError, match="--m"):
        policy.check(3)


def test_a_failure_that_says_when_it_came_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").touch()
    with pytest.raises(JobFailed) as caught:
        run_job(tmp_path, [failed(phase=Phase.FORWARD, iteration=3)], RestartPolicy(0, None, None))
    assert when(caught.value.failure) == (Phase.FORWARD, 3)
    assert noted_in(tmp_path) == caught.value.failure


def test_a_lost_link_is_not_held_against_the_node_that_tells_of_it(tmp_path: Path) -> None:
    lost = [failed(cause=Cause.UNREACHABLE) for _ in range(2)]
    attempts, _ = run_job(tmp_path, lost, RestartPolicy(2, 1, None))
    assert [one.left_out for one in attempts] == [(), (), ()]


@pytest.mark.parametrize(("flags", "least"), [((), 3), (("--apart",), 4)])
def test_a_subset_that_a_restart_may_not_fill_is_refused_at_the_start(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], least: int
) -> None:
    words = ["launch", "--local", "5", "--parallel", "fela", "--weights", "1,2", "--subset", "3", *flags]
    assert run([*words, "--max-restarts", "1", "--min-nodes", str(least - 1), "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"nalb launch: --min-nodes {least - 1} may leave too few workers for --subset 3: choose {least} "
    )
