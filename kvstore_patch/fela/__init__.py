"""Training with tokens (Geng et al., ICDE 2020) on Gluon: workers compute parts of the model for parts of the samples.

    cutting.py     cuts a net into blocks, by the batch sizes that its layers need
    trainer.py     the class that a training script uses
    compute.py     computes tokens on Gluon blocks
    chunks.py      keeps the arrays that computed tokens left on this worker
    gradients.py   sums gradients over the tokens that this worker computed
    summing.py     sums gradients over workers, on a thread of its own
    subset_sum.py  sums arrays over some of the workers
    updates.py     takes the optimizer's steps, and copies a sub-model's whole state

nalb/transport/courier.py carries arrays between workers.
"""

from kvstore_patch.fela.cutting import partition, stages
from kvstore_patch.fela.trainer import THRESHOLD, Trainer

__all__ = ["THRESHOLD", "Trainer", "partition", "stages"]
