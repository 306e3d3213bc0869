import pytest

from nalb.planning.precisions import bytes_in, cut_for
from nalb.planning.slices import HALVES, PRECISIONS, Tensor, build_layout, size_bytes, value_dtype, wire_dtype
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.planes import AGENTS


@pytest.mark.parametrize("precision", PRECISIONS)
def test_plans_count_what_travels_and_a_ring_what_there_is(precision):
    dtypes = [wire_dtype(dtype, precision) for dtype in ("float32", "float64")]
    assert [value_dtype(one) for one in dtypes] == ["float32", "float64"]
    tensors = tuple(Tensor(str(index), 600_000, dtype, index) for index, dtype in enumerate(dtypes))
    layout = build_layout(tensors, num_nodes=3, num_servers=3, alpha_bytes=1e5)
    coded_bytes = {"float32": 4, "bfloat16": 2, "float16": 2.01, "int8": 1.01, "int4": 0.625}[precision] * 600_000
    assert layout.model_bytes - size_bytes(600_000, "float64") == pytest.approx(coded_bytes, rel=0.01)
    assert sum(layout.sizes_bytes) == pytest.approx(layout.model_bytes, abs=len(layout.slices))
    assert all(isinstance(one.size_bytes, int) for one in layout.slices)
    nodes = JobNodes.of(["a", "b", "c"], {"a", "b", "c"}, {"a": 0, "b": 1, "c": 2})
    assert AGENTS.new_loads(nodes).shares(tensors).tolist() == pytest.approx([12 * 600_000 / 3] * 3)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_tensors_of_two_bytes_count_these_wherever_a_precision_has_no_fewer(precision, dtype):
    tensors = (Tensor("a", 600_000, wire_dtype(dtype, precision)),)
    for other in PRECISIONS:
        part = {"int8": 1.01, "int4": 0.625}.get(other, 2.0)
        assert bytes_in(tensors, other) == pytest.approx(part * 600_000, rel=0.01)
        assert cut_for(tensors, other)[0].size_bytes == bytes_in(tensors, other)
    nodes = JobNodes.of(["a", "b"], {"a", "b"}, {"a": 0, "b": 1})
    assert AGENTS.new_loads(nodes).shares(tensors).tolist() == [600_000, 600_000]
