from nalb.experiments.networks import equal_network, random_network, write_network
from netem.network_file import load_network


def test_a_seed_is_a_network(tmp_path):
    text = random_network("net-a", 12, 7, 90, 220)
    assert text == random_network("net-a", 12, 7, 90, 220) != random_network("net-a", 12, 8, 90, 220)
    network = load_network(write_network(tmp_path / "new", "net-a", text))
    rates = [node.up_mbps for node in network.nodes]
    assert network.is_static
    assert len(set(rates)) == 12
    assert all(90 <= rate <= 220 for rate in rates)
    assert rates == [node.down_mbps for node in network.nodes]


def test_a_changing_network_and_an_equal_one_are_network_files_too(tmp_path):
    changing = load_network(write_network(tmp_path, "net-b", random_network("net-b", 4, 1, every_s=30)))
    assert not changing.is_static
    assert (changing.random.every_s, changing.random.low_mbps, changing.random.high_mbps) == (30, 20, 220)
    equal = load_network(write_network(tmp_path, "net-c", equal_network("net-c", 3, 200)))
    assert {(node.up_mbps, node.down_mbps) for node in equal.nodes} == {(200, 200)}
