from experiments.networks import changing_machines, equal_network, random_network, uneven_network, write_network
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


def test_uneven_machines_are_network_files_and_may_start_alike(tmp_path):
    uneven = load_network(write_network(tmp_path, "net-d", uneven_network("net-d", (0.5, 0.25))))
    assert [node.cpu_quota for node in uneven.nodes] == [0.5, 0.25]
    assert uneven.cpu_changes == ()
    alike = load_network(write_network(tmp_path, "net-e", uneven_network("net-e", (0.5, 0.1), start_quota=0.4)))
    assert [node.cpu_quota for node in alike.nodes] == [0.4, 0.4]
    assert [(change.node, change.cpu_quota) for change in alike.cpu_changes] == [("n0", 0.5), ("n1", 0.1)]
    changing = load_network(write_network(tmp_path, "net-f", changing_machines("net-f", 3, 1, (0.1, 0.5), 10)))
    assert changing.cpu_random.every_s == 10
