"""LBB's profile on MXNet's clock: which sizes are run, how often, and what ends it. Run by test_profiling.py."""

import mxnet as mx

from kvstore_patch.gluon.profiling import measure


def profile(most, holds=None, error=None):
    ran = []

    def work(size):
        ran.append(size)
        if holds is not None and size > holds:
            raise error
        mx.nd.ones((size, 8)).sum()

    return ran, *measure(work, most)


ran, points, limit = profile(20)
assert ran == [4] * 4 + [8] * 4 + [16] * 4, ran
assert [size for size, _ in points] == [4, 8, 16]
assert all(elapsed_s > 0 for _, elapsed_s in points)
assert limit == 20

for full in (MemoryError("no room"), mx.base.MXNetError("std::bad_alloc")):
    _, points, limit = profile(100, holds=10, error=full)
    assert ([size for size, _ in points], limit) == ([4, 8], 8), full


def failure():
    try:
        profile(100, holds=10, error=mx.base.MXNetError("shape mismatch"))
    except mx.base.MXNetError as error:
        return str(error)
    return "none: a wrong shape was taken for a lack of memory"


assert "shape mismatch" in failure()
