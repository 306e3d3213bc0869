"""A replica's script, as torchft's Manager configures its group: three replicas sum, the last one dies, the others go on."""

import gc
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from nalb.failures import JobFailed
from nalb.torch import backend
from nalb.torch.torchft import ProcessGroupNalb

STEPS = 6  # two that teach, and some by the plane
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
torch.set_num_threads(1)
store = dist.TCPStore(*address, is_master=rank == 0, wait_for_workers=False)
group = ProcessGroupNalb(timedelta(seconds=60))


def configure(quorum: int, size: int) -> None:
    group.configure(f"{address[0]}:{address[1]}/torchft/{quorum}/0", "replica", rank, size)
    assert group.size() == size


def step() -> list[float]:
    tensors = [torch.full((elements,), rank + 1.0) for elements in (5000, 70000)]
    for work in [group.allreduce([one], dist.AllreduceOptions()) for one in tensors]:
        work.get_future().wait()
    return [one[-1].item() for one in tensors]


def require_sums(expected: float) -> None:
    assert all(step() == [expected, expected] for _ in range(STEPS))
    assert group.parent.front.by_plane, "no sum went by the plane"


configure(1, 3)
require_sums(6.0)
store.set(f"summed{rank}", "")
if rank == 2:
    store.wait(["summed0", "summed1"])  # they may still wait for this replica's last answers
    os._exit(9)
with pytest.raises(RuntimeError, match="lost its training process"):
    require_sums(6.0)
new_gloo, backend.new_gloo = backend.new_gloo, None  # a replica that dies before gloo's connections exist
with pytest.raises((TypeError, JobFailed)):  # or the other replica has left first
    configure(2, 2)
backend.new_gloo = new_gloo
gc.collect()  # the error's traceback has frames that have the group of the quorum before
configure(3, 2)
require_sums(3.0)
assert len(backend.kept_gloo) == 1, "the gloo group of the quorum before is kept"
ranks = [torch.zeros(1), torch.zeros(1)]
group.allgather([ranks], [torch.tensor([float(rank)])], AllgatherOptions()).wait()
assert [one.item() for one in ranks] == [0.0, 1.0]
group.shutdown()
print("ok", flush=True)
store.set(f"ended{rank}", "")
store.wait(["ended0", "ended1"])  # the store is rank 0's
