"""The backend on real processes of PyTorch."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.process.last_words import failure_in
from tests.torch import ranks

PITFALLS = Path(__file__).with_name("pitfalls.py")
BY_PLANE = {"NALB_SCHEME": "average"}  # never leaves sums to the ring, however fast links are
BY_RING = {"BY_RING": "1", "NALB_ALPHA_BYTES": "1"}  # slices are so small that plans cost more than the ring


def sections() -> list[str]:
    """Names of the script's sections."""
    for node in ast.parse(PITFALLS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SECTIONS":
            assert isinstance(node.value, ast.List)
            return [ast.unparse(one) for one in node.value.elts]
    raise AssertionError("no sections")


@pytest.fixture(scope="module")
def ended() -> list[ranks.Rank]:
    """One job for all sections: to start torch takes seconds."""
    return ranks.run(PITFALLS.name, size=3, **BY_PLANE)


@pytest.mark.torch
@pytest.mark.parametrize("section", [*sections(), "again"])
def test_each_pitfall_is_as_with_gloo(ended: list[ranks.Rank], section: str) -> None:
    for one in ended:
        assert f"ok {section}\n" in one.output, re.split(r"^(?:ok|failed) ", one.output, flags=re.MULTILINE)[-8:]


@pytest.mark.torch
def test_the_job_of_all_pitfalls_ends_well(ended: list[ranks.Rank]) -> None:
    assert [one.code for one in ended] == [0, 0, 0], [one.output[-2000:] for one in ended]


@pytest.mark.torch
@pytest.mark.parametrize(("autoload", "module"), [("1", "torch"), ("0", "nalb.torch"), ("1", "nalb.torch")])
def test_torch_knows_the_backend_and_loads_no_more_of_nalb(autoload: str, module: str) -> None:
    code = f"import sys, {module}, torch; print(torch.distributed.Backend('nalb'), *(one for one in sys.modules if 'nalb' in one))"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload},
        capture_output=True,
        text=True,
        check=True,
        timeout=60.0,
    ).stdout.split()
    assert [one for one in said if not one.startswith("__editable__")] == ["nalb", "nalb", "nalb.torch"]


@pytest.mark.torch
def test_ranks_of_a_machine_sum_among_themselves_first() -> None:
    names = (
        "hundred_steps",
        "works",
        "second_group",
        "plain_sums",
        "barrier_after_sums",
        "tensors_that_go",
        "saved_for_backward",
    )
    ended = ranks.run(PITFALLS.name, *names, size=4, RANKS_OF_A_MACHINE="2", **BY_PLANE)
    said = "\n".join(one.output[-3000:] for one in ended)  # where one rank fails, the others wait for it
    assert not any(one.code for one in ended), said
    assert all(f"ok {name}\n" in one.output for one in ended for name in (*names, "again")), said


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exception", ["worker m0 has rank 1, which failed: ValueError: the data are gone"]),
        ("finally", ["worker m0 has rank 1, which failed: ValueError: the data are gone"]),
        ("thrown out of a copy", ["worker m0 has rank 1, which failed: SumMissing: this rank was thrown out of a sum"]),
        ("exception beside a barrier", ["worker m1 has rank 3, which failed: ValueError: the data are gone"]),
        ("cut off", ["gloo, which has lost a connection"]),
    ],
)
def test_what_ends_a_rank_that_is_not_its_machines_first_is_told_on_all_machines(how: str, words: list[str]) -> None:
    ended = ranks.run("endings.py", how, size=4, within_s=60.0, RANKS_OF_A_MACHINE="2", **BY_PLANE)
    require_named(ended, *words)
    far = ended[0 if "m1" in words[0] else 2]  # of the other machine
    assert words[0] in far.output, [one.output[-3000:] for one in ended]


@pytest.mark.torch
def test_a_rank_that_leaves_its_machines_first_one_behind_is_named_with_its_number_of_sums() -> None:
    """It ends in good order, so it cannot say that it should not have."""
    *ended, far, far_too = ranks.run(
        "endings.py", "fewer steps", size=4, within_s=60.0, RANKS_OF_A_MACHINE="2", **BY_PLANE
    )
    assert [one.code for one in ended] == [1, 0], ended
    assert far.code, far
    assert far_too.code, far_too
    says = r"worker m0 has rank 1, which left after (\d+) sums, rank 0 has begun (\d+): all workers must make the same number"
    assert (told := re.search(says, ended[0].output)), ended[0].output[-3000:]
    assert int(told[1]) < int(told[2])


@pytest.mark.torch
def test_ranks_of_a_machine_leave_after_sums_that_nobody_has_waited_for() -> None:
    ended = ranks.run("endings.py", "not waited for", size=4, within_s=60.0, RANKS_OF_A_MACHINE="2", **BY_PLANE)
    assert [one.code for one in ended] == [0] * 4, [one.output[-3000:] for one in ended]
    assert not any("API is being deprecated" in one.output for one in ended)


@pytest.mark.torch
def test_a_rank_that_only_hears_of_anothers_end_is_not_named_for_it() -> None:
    ended = ranks.run("endings.py", "gone", size=4, within_s=60.0, RANKS_OF_A_MACHINE="3", **BY_PLANE)
    require_named(ended, "worker m0 failed")
    assert not any("has rank" in one.output for one in ended), [one.output[-3000:] for one in ended]


@pytest.mark.torch
def test_where_a_machines_first_rank_is_lost_all_its_ranks_are_suspects() -> None:
    """A launcher such as torchrun ends all ranks of a machine when one has ended, so the first one may be another."""
    how = "first of the second machine gone"
    ended = ranks.run("endings.py", how, size=4, within_s=60.0, RANKS_OF_A_MACHINE="2", **BY_PLANE)
    says = "any of this machine's 2 ranks may have ended first: see the output of all of them"
    require_named(ended, f"which ended without leaving the job: {says}")


@pytest.mark.torch
def test_machines_of_hosts() -> None:
    from nalb.torch.machine import machines_of

    assert machines_of([("a", True), ("b", True), ("a", True), ("b", True)]) == [[0, 2], [1, 3]]
    assert machines_of([("a", False), ("a", False), ("b", False)]) == [[0], [1], [2]]


def require_named(ended: list[ranks.Rank], *words: str) -> None:
    """All ranks failed, and the output of each that names a failure has the words."""
    assert all(one.code for one in ended), ended
    for word in words:
        assert any(word in one.output for one in ended), [one.output[-3000:] for one in ended]
    assert not any("killed after" in one.output or "nothing has ended" in one.output for one in ended), ended


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exception", ["ValueError: the data are gone", "JobFailed"]),
        ("finally", ["ValueError: the data are gone", "failed: ValueError"]),
        ("exit", ["failed: SystemExit: 3", "JobFailed"]),
        ("caught", ["failed: ValueError: the data are gone"]),
        ("other sums", ["6000 elements", "all workers must make the same"]),
        ("fewer sums", ["JobFailed"]),
        ("groups in another order", ["of group ", "3000 elements", "all workers must make the same"]),
        ("end where learned", ["left after 4 sums", "the same number of steps"]),
        ("other sums where learned", ["6000 elements", "all workers must make the same"]),
        ("half-way", ["was thrown out of a sum", "Stopped"]),
    ],
)
def test_a_rank_that_fails_ends_all_and_is_named(how: str, words: list[str]) -> None:
    require_named(ranks.run("endings.py", how, size=2, within_s=100.0, **BY_PLANE), *words)


@pytest.mark.torch
def test_a_rank_that_is_thrown_out_of_a_sum_and_ends_in_good_order_ends_all() -> None:
    waits, thrown_out = ranks.run("endings.py", "half-way, and no more", size=2, within_s=60.0, **BY_PLANE)
    assert (thrown_out.code, "killed after" in thrown_out.output) == (0, False)
    require_named([waits], "was thrown out of a sum", "Stopped")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("finally", ["failed: ValueError: the data are gone"]),
        ("exit", ["failed: SystemExit: 3"]),
        ("exit unseen", ["left after", "the same number of steps"]),
        ("other sums", ["6000 elements", "all workers must make the same"]),
    ],
)
def test_a_rank_that_fails_while_the_ring_sums_ends_all_and_is_named(how: str, words: list[str]) -> None:
    require_named(ranks.run("endings.py", how, size=2, within_s=60.0, **BY_RING), *words)


@pytest.mark.torch
def test_a_rank_that_waits_in_gloo_for_one_that_has_left_ends_and_says_so() -> None:
    waits, left = ranks.run("endings.py", "unequal ends", size=2, within_s=60.0, **BY_PLANE)
    assert "collectives by gloo" in waits.output
    assert (waits.code > 0, "killed after" in waits.output + left.output) == (True, False)


@pytest.mark.torch
def test_ranks_that_wait_for_each_other_in_gloo_and_in_a_sum_are_told() -> None:
    ended = ranks.run("endings.py", "a small sum", size=2, within_s=60.0, **BY_PLANE)
    require_named(ended, "collectives by gloo and")
    assert not any("killed after" in one.output for one in ended)


@pytest.mark.torch
@pytest.mark.parametrize("by", ["groups", "threads"])
def test_ranks_that_begin_sums_in_different_orders_and_wait_for_neither_go_on(by: str) -> None:
    ended = ranks.run("endings.py", f"apart by {by}", size=2, within_s=60.0, NALB_DEADLINE_S="5", **BY_PLANE)
    assert [one.code for one in ended] == [0, 0], [one.output[-3000:] for one in ended]


@pytest.mark.torch
def test_a_rank_that_waits_in_gloo_without_a_connection_ends_all_and_is_told_why() -> None:
    require_named(
        ranks.run("endings.py", "cut off", size=2, within_s=100.0, **BY_PLANE), "gloo, which has lost a connection"
    )


@pytest.mark.torch
def test_a_rank_that_gloo_tells_of_anothers_end_tells_the_launcher_which_one() -> None:
    told, left = ranks.run("endings.py", "gloo first", size=2, within_s=60.0, NALB_JOB="job:worker", **BY_PLANE)
    assert left.code == 9
    failures = [one for line in told.output.split("\n") if (one := failure_in(line)[1]) is not None]
    assert failures
    assert all("lost its training process" in one.detail for one in failures), failures


@pytest.mark.torch
def test_a_connection_of_gloos_that_is_lost_while_nothing_needs_it_ends_nobody() -> None:
    ended = ranks.run("endings.py", "cut where idle", size=2, within_s=60.0, **BY_PLANE)
    assert [one.code for one in ended] == [0, 0], [one.output[-3000:] for one in ended]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("whom", "how", "word"),
    [("script", "", "JobFailed"), ("agent", "backward", "JobFailed"), ("agent", "barrier", "nalb: ")],
)
def test_a_rank_that_is_killed_ends_all_and_is_named(whom: str, how: str, word: str) -> None:
    started = ranks.start("endings.py", how, size=2, **BY_PLANE)
    victim = started[1]
    assert victim.stdout is not None
    for line in victim.stdout:
        if line == "trains\n":
            break
    agents = ranks.agents_of(victim.pid)
    os.kill(victim.pid if whom == "script" else agents[0], signal.SIGKILL)
    require_named(ranks.wait(started, 60.0), word)
    assert agents
    assert not any(map(ranks.runs, agents))


@pytest.mark.torch
@pytest.mark.parametrize("how", ["backward", "thread"])
def test_a_script_that_computes_for_long_while_another_rank_dies_hears_of_it(how: str) -> None:
    survivor, dead = ranks.run("survivors.py", how, size=2, within_s=100.0, **BY_PLANE)
    assert dead.code == 9
    assert (survivor.code, "caught " in survivor.output) == (0, True), survivor.output[-3000:]


@pytest.mark.torch
def test_a_script_that_has_destroyed_its_group_goes_on_with_gloo() -> None:
    survivor, dead = ranks.run("survivors.py", "gloo", size=2, within_s=100.0, **BY_PLANE)
    assert dead.code == 9
    assert (survivor.code, "went on\n" in survivor.output) == (0, True), survivor.output[-3000:]


@pytest.mark.torch
def test_signals_that_a_script_handles_end_neither_agents_nor_the_coordinator() -> None:
    ended = ranks.run("endings.py", "signals", size=2, within_s=60.0, **BY_PLANE)
    assert [one.code for one in ended] == [0, 0], [one.output[-3000:] for one in ended]


@pytest.mark.torch
def test_ranks_with_other_pasts_meet() -> None:
    ended = ranks.run("pasts.py", size=2, within_s=60.0, **BY_PLANE)
    assert [one.code for one in ended] == [0, 0], [one.output[-3000:] for one in ended]


@pytest.mark.torch
def test_gloo_alone_runs_the_same_script_without_agents() -> None:
    started = ranks.start("endings.py", "end", size=2, NALB_SCHEME="gloo")
    ended = ranks.wait(started, 60.0)
    assert [(one.code, "by gloo\n" in one.output) for one in ended] == [(0, True)] * 2


@pytest.mark.torch
def test_forked_ranks_without_variables_leave_in_good_order() -> None:
    (script,) = ranks.run("forked.py", size=1, within_s=90.0, MASTER_ADDR="", **BY_PLANE)
    assert (script.code, script.output) == (0, "")


@pytest.mark.torch
def test_ranks_that_are_forked_off_a_process_that_had_a_job_begin_anew() -> None:
    (script,) = ranks.run("forked.py", "used before", size=1, within_s=90.0, MASTER_ADDR="", **BY_PLANE)
    assert (script.code, script.output) == (0, "")


@pytest.mark.torch
@pytest.mark.parametrize("how", ["forked", "spawned"])
def test_an_exception_in_a_process_of_multiprocessing_ends_a_rank_that_waits_in_gloo(how: str) -> None:
    (script,) = ranks.run("forked.py", how, size=1, within_s=60.0, MASTER_ADDR="", **BY_PLANE)
    assert (script.code, "killed after" in script.output) == (1, False), script.output[-3000:]
    assert "ValueError: the data are gone" in script.output


WITH_GPU = """
import torch, torch.distributed as dist
torch.cuda.is_available = lambda: True
torch.accelerator.current_accelerator, torch.accelerator.device_count = lambda: torch.device("cuda"), lambda: 1
"""


def run_alone(script: str) -> None:
    """Run a script of one rank, which needs no variables."""
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
    subprocess.run([sys.executable, "-c", script], env=environment, timeout=60.0, check=True)


@pytest.mark.torch
@pytest.mark.parametrize(
    "call", ["reduce(one, 0)", "gather(one, [one])", "scatter(one, [one])", "all_to_all([one], [one])"]
)
def test_the_first_call_of_a_group_may_be_any(call: str) -> None:
    run_alone(
        WITH_GPU
        + f"""
dist.init_process_group("nalb", store=dist.HashStore(), rank=0, world_size=1)
assert torch.device("cuda") in dist.group.WORLD._device_types, "C++ that comes first has no backend"
one = torch.ones(3)
dist.{call}
"""
    )


@pytest.mark.torch
@pytest.mark.parametrize("more", ["", ', device_id=torch.device("cuda", 0)'])
def test_a_group_has_a_gpus_backend_from_the_beginning(more: str) -> None:
    run_alone(
        WITH_GPU
        + f"""
dist.init_process_group("nalb", store=dist.HashStore(), rank=0, world_size=1{more})
dist.new_group([0])
assert isinstance(dist.group.WORLD._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
"""
    )


@pytest.mark.torch
@pytest.mark.parametrize(("options", "expected"), [("None", "given by default"), ("Nccl.Options('mine')", "mine")])
def test_nccl_gets_the_groups_timeout_and_the_scripts_options(options: str, expected: str) -> None:
    """With gloo in place of NCCL, which torch has for GPUs alone."""
    run_alone(
        WITH_GPU
        + f"""
from datetime import timedelta

class Nccl:
    class Options:
        def __init__(self, name="given by default"):
            self.name = name

    def __new__(cls, store, rank, size, options):
        assert (options.name, options._timeout) == ({expected!r}, timedelta(seconds=77))
        cls.made = dist.ProcessGroupGloo(store, rank, size, options._timeout)
        return cls.made

dist.ProcessGroupNCCL = Nccl
dist.init_process_group(
    "cpu:nalb,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=77), pg_options={options}
)
assert dist.group.WORLD._get_backend(torch.device("cuda")) is Nccl.made
"""
    )


@pytest.mark.torch
def test_works_of_nccls_are_not_kept_as_gloos() -> None:
    """To ask one whether it is done breaks the capture of a graph.

    With gloo in place of NCCL, and tensors that say they are a GPU's.
    """
    run_alone(
        WITH_GPU
        + """
from nalb.torch.gloo import Gloo

class OnGpu(torch.Tensor):
    device = torch.device("cuda", 0)

class Nccl:
    class Options:
        pass

    def __new__(cls, store, rank, size, options):
        return dist.ProcessGroupGloo(store, rank, size, options._timeout)

noted = []
begun = Gloo.begun
Gloo.begun = lambda one, work: noted.append(work) or begun(one, work)
dist.ProcessGroupNCCL = Nccl
dist.init_process_group("cpu:nalb,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
group, on_cpu = dist.group.WORLD, torch.ones(5000)
for one, expected in ((on_cpu, 4), (on_cpu.as_subclass(OnGpu), 0)):
    noted.clear()
    group.allreduce([one]).wait()
    group.broadcast([one], dist.BroadcastOptions()).wait()
    group.allgather([[on_cpu.clone()]], [one]).wait()
    group._allgather_base(on_cpu.clone(), input=one).wait() if hasattr(dist.ProcessGroup, "_allgather_base") else noted.append(0)
    assert len(noted) == expected, noted
"""
    )


@pytest.mark.torch
@pytest.mark.parametrize("is_cut_off", [True, False])
def test_a_next_job_does_not_wait_for_the_end_of_a_group_that_is_cut_off(is_cut_off: bool) -> None:
    """Its threads end only at gloo's timeout."""
    run_alone(f"""
import weakref, torch, torch.distributed as dist
from nalb.torch.works import SumWork
dist.init_process_group("nalb", store=dist.HashStore(), rank=0, world_size=1)
gloo = dist.group.WORLD.gloo
gloo.is_watched, gloo.has_lost_one = True, lambda: {is_cut_off}
gloo.begun(SumWork(torch.zeros(1)))
group = weakref.ref(gloo.group)
dist.destroy_process_group()
del gloo
dist.init_process_group("nalb", store=dist.HashStore(), rank=0, world_size=1)
assert (group() is not None) == {is_cut_off}
""")


@pytest.mark.torch
def test_a_torch_that_ends_nccls_groups_alone_ends_nalbs_too() -> None:
    """As 2.6 does, whose function has this name."""
    run_alone("""
import torch.distributed as dist
ended = []
dist.distributed_c10d._shutdown_backend = ended.append
dist.init_process_group("nalb", store=dist.HashStore(), rank=0, world_size=1)
dist.group.WORLD.shutdown = lambda: ended.append("nalb's")
for one in ("another", dist.group.WORLD):
    dist.distributed_c10d._shutdown_backend(one)
assert ended == ["another", dist.group.WORLD, "nalb's"], ended
""")


@pytest.mark.torch
def test_another_default_group_is_an_error_for_groups_of_nalbs() -> None:
    run_alone("""
import pytest, torch.distributed as dist
from nalb.errors import InputError
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with pytest.raises(InputError, match="the default group has backend gloo"):
    dist.new_group(backend="nalb")
""")


@pytest.mark.torch
def test_a_sum_that_does_not_come_raises_what_scripts_catch() -> None:
    from datetime import timedelta

    import torch

    from nalb.torch.works import SumWork

    with pytest.raises(RuntimeError, match="5 elements has not come within"):
        SumWork(torch.zeros(5)).wait(timedelta(milliseconds=1))


@pytest.mark.torch
def test_a_caught_error_keeps_no_frames() -> None:
    """They have the script's tensors, which a script that tries again would gather."""
    import torch

    from nalb.failures import Cause, Failure, JobFailed
    from nalb.torch.works import SumWork

    error = JobFailed(Failure(cause=Cause.SILENT, detail="has not reported"), 3)
    work = SumWork(torch.zeros(5))
    work.complete(error)
    with pytest.raises(RuntimeError, match="has not reported"):
        work.wait()
    assert error.__traceback__ is None


@pytest.mark.torch
def test_a_group_ends_while_gloo_still_runs_a_callback() -> None:
    script = """
import time, torch, torch.distributed as dist

def train():
    dist.init_process_group("nalb", store=dist.HashStore(), rank=0, world_size=1)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40))

    def hook(_, bucket):
        summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        result = summed.then(lambda done: done.value()[0])
        summed.then(lambda done: time.sleep(1.0))
        return result

    net.register_comm_hook(None, hook)
    net(torch.ones(3, 40)).sum().backward()
    dist.destroy_process_group()

train()
"""
    run_alone(script)


LACKING = """
import os, signal
for module, names in ((os, ("memfd_create", "MFD_CLOEXEC", "pidfd_open")), (signal, ("pidfd_send_signal",))):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""


@pytest.mark.torch
def test_a_python_that_was_built_with_an_old_c_library(tmp_path: Path) -> None:
    """conda's has no memfd_create and no pidfd_open, on any kernel."""
    (tmp_path / "sitecustomize.py").write_text(LACKING)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = ranks.run(PITFALLS.name, "plain_sums", size=2, PYTHONPATH=path, **BY_PLANE)
    assert all(one.code == 0 and "ok plain_sums\n" in one.output for one in ended), [
        one.output[-2000:] for one in ended
    ]


IN_A_CHILD = """
import os
from datetime import timedelta
import torch.distributed as dist
from nalb.torch.gloo import Gloo
one = Gloo(dist.HashStore(), 0, 1, timedelta(seconds=30), "127.0.0.1")
if not (pid := os.fork()):
    del one
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.torch
def test_a_forked_child_does_not_end_a_group_whose_threads_it_does_not_have() -> None:
    run_alone(IN_A_CHILD)


NUMBERS = """
import torch, torch.distributed as dist
from nalb.torch.gathering import device_of_numbers
dist.init_process_group("{backend}", store=dist.HashStore(), rank=0, world_size=1)
print(device_of_numbers().type)
"""


@pytest.mark.torch
@pytest.mark.parametrize(("backend", "device"), [("cuda:gloo", "cuda"), ("gloo", "cpu"), ("nalb", "cpu")])
def test_numbers_lie_where_the_group_takes_them(backend: str, device: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", NUMBERS.format(backend=backend)],
        capture_output=True,
        text=True,
        timeout=60.0,
        check=True,
    )
    assert told.stdout == f"{device}\n"
