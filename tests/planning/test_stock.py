import pytest

from nalb import workloads
from nalb.planning.slices import Tensor
from nalb.planning.stock import BIGARRAY_BOUND, STOCK_KEYS, OwnKeys, route


def test_small_arrays_go_whole_by_key_and_large_ones_in_parts():
    """Worked by hand from KVStoreDist::EncodeDefaultKey: 9973 mod 4 = 1, and 1,000,003 / 4 = 250,000.75."""
    tensors = [Tensor("a", 10, "float32"), Tensor("b", 1_000_003, "float32"), Tensor("c", 999_999, "float16")]
    sizes, servers = route(tensors, 4)
    assert servers.tolist() == [0, 0, 1, 2, 3, 2]
    assert sizes.tolist() == [40, 1_000_004, 1_000_004, 1_000_000, 1_000_004, 1_999_998]
    assert route(tensors[:1], 4, keys=[7])[1].tolist() == [3]


@pytest.mark.parametrize("name", workloads.NAMES)
@pytest.mark.parametrize("servers", [1, 4, 12])
def test_every_byte_of_a_model_is_sent_once(name, servers):
    tensors = [Tensor(t.name, t.elements, t.dtype) for t in workloads.load(name)]
    sizes, ranks = route(tensors, servers)
    assert sizes.sum() == sum(t.size_bytes for t in tensors)
    assert set(ranks.tolist()) <= set(range(servers))
    parts = sum(t.elements >= BIGARRAY_BOUND for t in tensors)
    assert len(sizes) == len(tensors) + parts * (servers - 1)


def test_more_servers_than_elements_leave_no_empty_message():
    sizes, servers = route([Tensor("a", 3, "float32")], 8, bound=1)
    assert sizes.tolist() == [4, 4, 4]
    assert len(set(servers.tolist())) == 3


def test_keys_are_gluons_where_names_are():
    """Gluon numbers parameters without gradients too, such as running means."""
    keys = OwnKeys()
    gluons = [Tensor(name, 10, "float32") for name in ("0", "1", "4", "5")]
    assert keys.of(gluons) == [0, 1, 4, 5]
    assert keys.of([Tensor("bias", 10, "float32"), Tensor("4", 10, "float32")]) == [6, 7]
    assert keys.of([Tensor("7", 10, "float32"), Tensor("2", 10, "float32")]) == [8, 9]  # in no order of Gluon's
    assert keys.of([Tensor("0", 10, "float32"), Tensor(str(STOCK_KEYS - 10), 10, "float32")]) == [10, 11]
    assert keys.of([Tensor("3", 20, "float32")]) == [15]
    assert keys.of(gluons) == [0, 1, 4, 5]
