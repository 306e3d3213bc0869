"""A short training as a user writes it; rank 0 prints its loss."""

import mxnet as mx
from mxnet import autograd, gluon

mx.random.seed(1)
store = mx.kv.create("nalb")
net = gluon.nn.Dense(64, in_units=2048)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=store)
batch = mx.nd.random.uniform(shape=(4, 2048))
for _ in range(6):
    with autograd.record():
        loss = (net(batch) ** 2).mean()
    loss.backward()
    trainer.step(4 * store.num_workers)
if store.rank == 0:
    print(f"loss {loss.asscalar():.6f}", flush=True)
