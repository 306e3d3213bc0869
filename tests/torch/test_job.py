"""A rank's way into its job, with stores of torch's alone."""

import importlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Lock
from types import SimpleNamespace

import pytest

from nalb.errors import InputError
from nalb.failures import Cause, Failure, JobFailed
from tests.torch import ranks


@pytest.mark.torch
def test_ranks_meet_where_the_store_has_keys_of_others() -> None:
    import torch.distributed as dist

    from nalb.torch.job import meet

    store, names = dist.HashStore(), []
    for _ in range(2):  # again, as after a restart
        with ThreadPoolExecutor(3) as ranks_alone:  # one of which failed before it came
            store.set_timeout(timedelta(seconds=0.1))
            missing = [ranks_alone.submit(meet, store, rank, 3) for rank in (0, 1)]
            assert all(isinstance(one.exception(), JobFailed) for one in missing)
        store.set_timeout(timedelta(seconds=60))
        with ThreadPoolExecutor(3) as all_ranks:
            (name,) = set(all_ranks.map(lambda rank: meet(store, rank, 3), range(3)))
        names.append(name)
    assert len(set(names)) == 2


@pytest.mark.torch
def test_a_rank_hears_of_another_process_that_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third rank is missing, since somebody has given two processes the number of the second one."""
    import torch.distributed as dist

    from nalb.torch import job

    monkeypatch.setattr(job, "TURN_S", 0.2)
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=2))
    with ThreadPoolExecutor(3) as pool:
        ended = [pool.submit(job.meet, store, rank, 3) for rank in (0, 1, 1)]
        errors = [one.exception() for one in ended]
    assert sorted(type(one).__name__ for one in errors) == ["InputError", "JobFailed", "JobFailed"], errors
    (refused,) = (one for one in errors if isinstance(one, InputError))
    assert str(refused).startswith("another process has come as rank 1: give each process a RANK of its own")


@pytest.mark.torch
def test_what_another_process_told_in_ones_place_is_noticed_where_nobody_is_missing() -> None:
    import torch.distributed as dist

    from nalb.torch.job import told_by_all

    class Shared(dist.HashStore):
        def wait(self, keys: list[str], within: timedelta) -> None:
            self.set("word1", '"of the other"')
            super().wait(keys, within)

    store = Shared()
    store.set("word0", '"first"')
    with pytest.raises(InputError, match="another process has come as rank 1: "):
        told_by_all(store, "word", 1, 2, "own")


@pytest.mark.torch
def test_a_rank_whose_agent_is_missing_is_named_in_time() -> None:
    import torch.distributed as dist

    from nalb.torch.job import told_by_all

    store = dist.HashStore()
    store.set_timeout(timedelta(minutes=30))
    with pytest.raises(JobFailed, match=r"worker n1 has not told its agent's address within 0\.2 s") as raised:
        told_by_all(store, "agent's address", 0, 2, ["here"], 0.2, ["n0", "n1"])
    failure = raised.value.failure
    assert (failure.cause, failure.role, failure.node) == (Cause.ABSENT, "worker", "n1")


@pytest.mark.torch
def test_a_rank_that_tells_its_word_as_the_time_ends_is_not_missing() -> None:
    import torch.distributed as dist

    from nalb.torch.job import told_by_all

    class Late(dist.HashStore):
        def wait(self, _: list[str], within: timedelta) -> None:
            time.sleep(within.total_seconds())
            self.set("address1", '"there"')
            raise RuntimeError("Wait timeout")

    assert told_by_all(Late(), "address", 0, 2, "here", 0.1, ["n0", "n1"]) == ["here", "there"]


@pytest.mark.torch
def test_a_rank_leaves_where_python_starts_no_thread_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do Python 3.12.0 to 3.12.2 at exit. Its word for the other ranks of its machine is lost."""
    import torch.distributed as dist

    from nalb.torch.job import TorchJob

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    store = dist.HashStore()
    job = TorchJob(store, 0, 1, timedelta(seconds=10), ends_script=False)
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(job, "machine", SimpleNamespace(number=0, ranks=[0], close=lambda: None))
    job.leave(Failure(cause=Cause.SCRIPT, detail="failed: ValueError: the data are gone"))


@pytest.mark.torch
def test_a_rank_whose_store_goes_while_ranks_meet_is_told_so() -> None:
    import torch.distributed as dist

    from nalb.torch.job import meet

    class Gone(dist.HashStore):
        def check(self, _: object) -> bool:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(JobFailed, match=r"torch's store is gone \(RuntimeError: Connection reset by peer\), which"):
        meet(Gone(), 0, 1)


@pytest.mark.torch
@pytest.mark.parametrize(("module", "waits"), [("distributed_c10d", True), ("checkpoint.filesystem", False)])
def test_a_thread_that_saves_a_checkpoint_does_not_wait_for_other_ranks(module: str, waits: bool) -> None:
    """It may do so for long, where its disk is slow, after it has heard that the job has failed."""
    from nalb.torch.job import waits_in_torch

    path = importlib.import_module(f"torch.distributed.{module}").__file__
    begun, end = Lock(), Lock()
    begun.acquire()
    end.acquire()
    code = compile("begun.release(); end.acquire()", path, "exec")
    with ThreadPoolExecutor(1) as thread:
        number = thread.submit(threading.get_ident).result()
        thread.submit(exec, code, {"begun": begun, "end": end})
        begun.acquire()
        try:
            assert waits_in_torch(number) == waits
        finally:
            end.release()


@pytest.mark.torch
def test_a_rank_whose_store_does_not_answer_ends_in_time() -> None:
    stopped, other = ranks.start("stopped_store.py", size=2, NALB_STARTUP_S="3")
    try:
        (ended,) = ranks.wait([other], 60.0)
    finally:
        stopped.kill()
        stopped.communicate()
    assert ended.code == 1, ended.output
    assert "JobFailed: phase start: torch's store does not answer" in ended.output


KEYS, SITES, SCHEME = (f"environment variable NALB_{name}" for name in ("KEYS", "SITES", "SCHEME"))
ALL_EAST = "m0=east,m1=east,m2=east"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            ["NALB_KEYS", "-", "m1.keys", "m2.keys"],
            f"{KEYS} is set on m1, m2, but not on m0: give all machines the keys",
        ),
        (
            ["NALB_SITES", ALL_EAST, "m1=west", ALL_EAST],
            f"{SITES} differs between m0 and m1: give all machines the same",
        ),
        (
            ["NALB_SCHEME", "-", "gloo", "exact"],
            f"{SCHEME}=gloo is set on m1, but not on m0, m2: give all machines this scheme, or none",
        ),
    ],
)
def test_machines_that_differ_in_what_must_be_alike_are_refused_at_once_on_all_ranks(
    values: list[str], says: str
) -> None:
    ended = ranks.run("unlike.py", *values, size=3, within_s=60.0)
    assert all(one.code and f"InputError: {says}" in one.output for one in ended), [one.output for one in ended]


@pytest.mark.torch
def test_a_rank_by_gloo_alone_on_a_machine_of_several_is_refused_on_all() -> None:
    ended = ranks.run("unlike.py", "NALB_SCHEME", "-", "-", "-", "gloo", size=4, within_s=60.0, LOCAL_WORLD_SIZE="2")
    says = f"InputError: {SCHEME}=gloo is set on rank 3 of m1, but not on m0, m1: give all"
    assert all(one.code and says in one.output for one in ended), [one.output for one in ended]


@pytest.mark.torch
def test_gloo_alone_with_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NALB_SCHEME", "gloo")
    ended = ranks.run("unlike.py", "NALB_KEYS", "m0.keys", "m1.keys", size=2, within_s=60.0)
    says = "InputError: NALB_SCHEME=gloo does not encrypt: unset NALB_KEYS, or choose another scheme"
    assert all(one.code and says in one.output for one in ended), [one.output for one in ended]


@pytest.mark.torch
@pytest.mark.parametrize("told", [{}, {"NALB_SCHEME": "gloo"}, {"LOCAL_WORLD_SIZE": "2"}, {"WORLD_SIZE": "1"}])
def test_a_misspelt_variable_is_an_error_on_all_ranks(told: dict[str, str]) -> None:
    size = int(told.get("WORLD_SIZE", "2"))
    values = ["-", "int8"][-size:]
    ended = ranks.run("unlike.py", "NALB_PRECISON", *values, size=size, within_s=60.0, **told)
    says = "InputError: environment variable NALB_PRECISON is unknown: write NALB_PRECISION, or unset it"
    assert all(one.code and says in one.output for one in ended), [one.output for one in ended]


@pytest.mark.torch
def test_machines_with_unlike_versions_of_nalb_are_refused_at_once_on_all_ranks() -> None:
    ended = ranks.run("unlike.py", "version", "-", "-", "1", size=3, within_s=60.0)
    others = ["rank 2", "rank 2", "rank 0, rank 1"]
    for rank, one in enumerate(ended):
        says = f"InputError: nalb on {others[rank]} is of another version than on rank {rank}: install the same nalb"
        assert one.code, one.output
        assert says in one.output
