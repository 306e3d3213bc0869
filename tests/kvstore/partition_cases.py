"""Batches from workers' own partitions, without a job: balancers that are told their sizes. Run by test_batching.py."""

import numpy as np

from kvstore_patch.batching import PartitionSampler
from nalb.errors import InputError

SIZES = [10, 20, 60]
PARTS = [np.arange(rank, 300, 3) for rank in range(3)]


class Told:
    """As Balancer, to a sampler."""

    def __init__(self, rank):
        self.rank, self.total, self.sizes, self.draws = rank, sum(SIZES), [], 0

    def draw(self):
        self.sizes, self.draws = SIZES, self.draws + 1


workers = [Told(rank) for rank in range(3)]
samplers = [PartitionSampler(worker, PARTS, seed=1, threshold=2.0) for worker in workers]
assert [len(sampler) for sampler in samplers] == [3, 3, 3]  # 300 samples, 90 an iteration
seen = {}
for epoch in range(5):
    for rank, sampler in enumerate(samplers):
        batches = list(sampler)
        assert [len(batch) for batch in batches] == [SIZES[rank]] * 3
        seen[rank, epoch] = {sample for batch in batches for sample in batch}
assert workers[0].draws == 15
assert seen[0, 0] <= set(range(0, 300, 3))
assert samplers[0].stream.moves
assert samplers[0].stream.moves == samplers[2].stream.moves
for mine, others in zip(samplers[0].stream.partitions, samplers[2].stream.partitions, strict=True):
    assert mine.tolist() == others.tolist()
assert len(samplers[0].stream.partitions[2]) > len(PARTS[2])
samplers[0].go_to(0)
try:
    samplers[0].go_to(3)
except InputError as error:
    assert "without a checkpoint" in str(error)
else:
    raise AssertionError("partitioned data went on from the middle")
