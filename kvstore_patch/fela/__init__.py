"""Training with tokens (Geng et al., ICDE 2020) on Gluon: workers compute parts of the model for parts of the samples.

    cutting.py     a net into blocks, by how large batches its layers need
    trainer.py     the script's side
    compute.py     tokens on blocks
    chunks.py      what computed tokens left here
    gradients.py   sums over the tokens that this worker computed
    summing.py     sums over workers, on a thread of their own
    subset_sum.py  sums over some workers
    updates.py     the optimizer's steps, and a sub-model's whole state

Arrays travel between workers by nalb/transport/courier.py.
"""

from kvstore_patch.fela.cutting import partition, stages
from kvstore_patch.fela.trainer import THRESHOLD, Trainer

__all__ = ["THRESHOLD", "Trainer", "partition", "stages"]
