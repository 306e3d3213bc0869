"""What each worker runs: sums of awkward numbers, planned and unplanned; prints a digest of all bits that came back."""

import hashlib

import mxnet as mx
import numpy as np
from mxnet import nd

store = mx.kv.create("nalb")
RANK, COUNT = store.rank, store.num_workers
ITERATIONS = 6
digest = hashlib.sha256()


def everyones(shape, seed, dtype):
    """All workers' arrays, by rank; some elements not finite, denormal, or zeros of either sign."""
    generator = np.random.default_rng(seed)
    arrays = [generator.normal(size=shape).astype(dtype) for _ in range(COUNT)]
    flat = [array.reshape(-1) for array in arrays]
    for one in flat:
        one[:1] = -0.0
    flat[-1][1:2] = np.nan
    flat[0][2:3] = np.inf
    for one in flat:
        one[3:4] = np.finfo(dtype).smallest_subnormal
    return arrays


def take(array, arrays, rtol):
    back = array.asnumpy()
    digest.update(back.tobytes())
    np.testing.assert_allclose(back, np.sum(arrays, axis=0, dtype=np.float64), rtol=rtol, atol=10 * rtol)


kinds = [
    ("a", (300, 401), "float32"),
    ("b", (5,), "float32"),
    ("c", (120_001,), "float64"),
    ("d", (70_000,), "float16"),
]
for place, (key, shape, dtype) in enumerate(kinds):
    arrays = everyones(shape, place, dtype)
    out = nd.zeros(shape, dtype=dtype)
    store.broadcast(key, nd.array(arrays[RANK], dtype=dtype), out)
    digest.update(out.asnumpy().tobytes())
    np.testing.assert_allclose(out.asnumpy(), arrays[0], rtol=1e-6, atol=1e-6)  # MXNet adds in single precision
for iteration in range(ITERATIONS):
    values = [everyones(shape, 10 * iteration + place, dtype) for place, (_, shape, dtype) in enumerate(kinds)]
    mine = [nd.array(one[RANK], dtype=dtype) for one, (_, _, dtype) in zip(values, kinds, strict=True)]
    store.pushpull([key for key, _, _ in kinds], mine)
    for array, arrays, (_, _, dtype) in zip(mine, values, kinds, strict=True):
        take(array, arrays, 1e-2 if dtype == "float16" else 1e-5)
print(f"digest {digest.hexdigest()}", flush=True)
