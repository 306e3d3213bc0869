"""What a Gluon script imports of nalb, as `horovod.mxnet` is what it imports of Horovod.

    from nalb.mxnet import Checkpoints, Progress, batching

`mx.kv.create("nalb")` and `kvstore="nalb"` need no import. A script that trains without `nalb launch` may import all of it too.

batching        `join` takes part in the choice of batch sizes: docs/batching.md
federated       `join` takes part in rounds of federated averaging: docs/batching.md
fela            `Trainer` trains by tokens, `partition` and `stages` cut a net for it: docs/fela.md
Checkpoints     saves and restores a training's state: docs/checkpoints.md
Progress        where a training goes on: iteration, epoch, batch, and notes of the script's own
Stream          which samples an iteration has, alike on all workers
micro_batches   divides a batch into parts of one size: docs/batching.md
label_skewed    divides labelled samples into parts of few classes each, for `batching` and `federated`

Errors are those of `nalb`: InputError, StoreError, CheckpointError, MachineError.
"""

from nalb.errors import MachineError
from nalb.extras import require_mxnet

try:
    require_mxnet("nalb.mxnet")
except MachineError as error:
    raise ImportError(str(error)) from None

from kvstore_patch import batching, federated, fela
from kvstore_patch.checkpoints import Checkpoints, Progress
from nalb.batching.micro_batches import micro_batches
from nalb.batching.partitions import label_skewed
from nalb.batching.stream import Stream

__all__ = ["Checkpoints", "Progress", "Stream", "batching", "federated", "fela", "label_skewed", "micro_batches"]
