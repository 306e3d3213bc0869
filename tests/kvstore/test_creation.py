"""Python and MXNet where nalb is installed, in no job: the store's name is an error, or MXNet's own 'local' by choice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from build_backend import LINE

from nalb.launch.machine_env import BOOTSTRAP

LOADED = "import sys; print(*sys.modules)"
ALONE = """
import mxnet as mx

def refused(call, text):
    try:
        call()
    except Exception as error:
        assert type(error).__name__ == "StoreError" and text in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError(f"no error about {text}")

net = mx.gluon.nn.Dense(2, in_units=3)
net.initialize()

def step(kvstore):
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kvstore)
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 3))).sum()
    loss.backward()
    trainer.step(2)

def fit(kvstore):
    data = mx.io.NDArrayIter(mx.nd.ones((8, 3)), mx.nd.zeros(8), 4)
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), name="softmax")
    mx.mod.Module(net).fit(data, num_epoch=1, kvstore=kvstore)
"""
REFUSED = """
for use in (mx.kv.create, step, fit):
    for name in ("nalb", "NALB", "dist_sync_nalb"):
        refused(lambda: use(name), "start it by `nalb launch --local 2 -- python train.py`, or with NALB_ALONE=1")
    refused(lambda: use("nalbb"), "write 'nalb'")
    use("local")
"""
ALLOWED = """
store = mx.kv.create("nalb")
assert (store.type, store.rank, store.num_workers) == ("local", 0, 1)
for use in (step, fit):
    use("nalb")
refused(lambda: step("nalbb"), "write 'nalb'")
module = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), name="softmax"))
module.bind([("data", (4, 3))], [("softmax_label", (4,))])
module.init_params()
module.init_optimizer(kvstore="nalb")
assert not module._update_on_kvstore
import sys
from nalb.mxnet import Checkpoints, Progress
for kvstore in ("nalb", store):
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore=kvstore)
    assert Checkpoints(net, trainer, 1, sys.argv[1]).restore() == Progress()
    before = net.weight.data().asnumpy()
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 3))).sum()
    loss.backward()
    trainer.allreduce_grads()
    trainer.update(2)
    assert (abs(before - net.weight.data().asnumpy() - 1) < 1e-6).all()
for width in (2, 3):  # as in a job two Trainers may share the store, and keys need no init
    other = mx.gluon.nn.Dense(2, in_units=width)
    other.initialize()
    trainer = mx.gluon.Trainer(other.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)
    with mx.autograd.record():
        loss = other(mx.nd.ones((2, width))).sum()
    loss.backward()
    trainer.step(2)
for _ in range(2):
    fit(store)
parts = [mx.nd.ones(2), mx.nd.ones(2) * 2]
store.pushpull("loss", parts)
assert [one.asnumpy().tolist() for one in parts] == [[3, 3]] * 2
store.pushpull("loss", parts[0], out=(total := mx.nd.zeros(2)))
assert total.asnumpy().tolist() == [3, 3]
sparse = mx.gluon.nn.Embedding(3, 2, sparse_grad=True)
sparse.initialize()
trainer = mx.gluon.Trainer(sparse.collect_params(), "sgd", kvstore="nalb")
with mx.autograd.record():
    loss = sparse(mx.nd.ones(1)).sum()
loss.backward()
refused(lambda: trainer.step(1), "no separate push and pull (sparse gradients need them)")
from nalb.mxnet import batching
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore=store)
balancer = batching.join(store, 4)
for chosen in balancer.batches(8):
    assert (balancer.total, len(chosen)) == (4, 4)
    with mx.autograd.record():
        loss = net(mx.nd.ones((4, 3))).sum()
    loss.backward()
    trainer.step(balancer.total)
"""


def python(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "NALB_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, *arguments], env=kept | variables, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_start_of_python_loads_next_to_nothing() -> None:
    done = python("-I", "-c", LOADED)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith(("kvstore_patch", "nalb"))} == {
        "kvstore_patch",
        "kvstore_patch.after_mxnet",
    }
    assert not loaded & {"mxnet", "numpy", "typing", "importlib.abc"} - {*python("-S", "-c", LOADED).stdout.split()}
    assert "kvstore_patch.after_mxnet" in python("-I", "-c", LOADED, DMLC_ROLE="server").stdout
    finders = "import sys; print([type(one).__name__ for one in sys.meta_path])"
    assert "AfterMxnet" in python("-c", finders, DMLC_ROLE="worker").stdout
    assert "AfterMxnet" not in python("-c", finders, DMLC_ROLE="server").stdout


def test_a_nalb_that_is_half_removed_breaks_no_python(tmp_path: Path) -> None:
    (tmp_path / "nalb.pth").write_bytes(LINE)
    done = python("-I", "-S", "-c", f"import site; site.addsitedir({str(tmp_path)!r}); print('runs')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")


@pytest.mark.parametrize("flag", ["-S", "-P"])  # -S: no file of site-packages is read, nalb.pth neither
def test_a_path_of_the_launchers_makes_the_name_known_once(flag: str) -> None:
    """For an interpreter that has no nalb.pth."""
    path = str(BOOTSTRAP / "sitecustomize.py")
    run = f"import runpy, sys; runpy.run_path({path!r}); print([type(one).__name__ for one in sys.meta_path])"
    assert python(flag, "-c", run).stdout.count("AfterMxnet") == 1


@pytest.mark.mxnet
def test_outside_a_job_the_name_is_an_error() -> None:
    done = python("-I", "-c", ALONE + REFUSED)
    assert done.returncode == 0, done.stderr


@pytest.mark.mxnet
def test_alone_by_choice_it_is_mxnets_local(tmp_path: Path) -> None:
    done = python("-c", ALONE + ALLOWED, str(tmp_path), NALB_ALONE="1")
    assert done.returncode == 0, done.stderr
