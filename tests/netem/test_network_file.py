"""The parser: what it accepts, and that each kind of mistake is named in one line."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from netem.network_file import carried_networks, find_network, load_network, parse_network
from netem.network_tables import DEFAULT_QUEUE_MS, Change, CpuChange, CpuRedraws, Link, NetworkNode, RandomRedraws, Site

NODES = """
[[nodes]]
name = "a"
up_mbps = 10
down_mbps = 20
[[nodes]]
name = "b"
up_mbps = 30
down_mbps = 40
"""
BARE_NODES = '\n[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n'
GOOD = 'name = "net"\n' + NODES
LINK = '\n[[links]]\nsrc = "a"\ndst = "b"\nmbps = 5\n'
RANDOM = "\n[random]\nseed = 1\nevery_s = 5\nlow_mbps = 1\nhigh_mbps = 9\n"
SITED = 'name = "net"\n[[sites]]\nname = "s"\nup_mbps = 50\ndown_mbps = 60\n' + NODES.replace('"a"', '"a"\nsite = "s"')
FAR_PAIR = (
    "defaults = {{delay_ms = 400}}\n"
    + GOOD
    + LINK
    + "delay_ms = 650\njitter_ms = 50"
    + LINK.replace('"a"', '"c"').replace('"b"', '"a"').replace('"c"', '"b"')
    + "delay_ms = {back_ms}"
)
SITE_CHANGE = '\n[[changes]]\nat_s = 1\nsite = "{}"\nup_mbps = 9\n'
CPU_RANDOM = "\n[cpu_random]\nseed = 1\nevery_s = 5\nlow_cpu_quota = 0.1\nhigh_cpu_quota = 0.5\n"
CPU_CHANGE = '\n[[cpu_changes]]\nat_s = {}\nnode = "{}"\ncpu_quota = {}\n'


def test_everything_is_read():
    text = """
        name = "all"
        defaults = {queue_ms = 20, up_mbps = 7, delay_ms = 3}
        nodes = [{name = "a", down_mbps = 8},
            {name = "b-2", up_mbps = 1, down_mbps = 2, queue_ms = 9, delay_ms = 2, jitter_ms = 1.5, loss_percent = 0.5}]
        links = [{src = "a", dst = "b-2", mbps = 0.5, delay_ms = 40, jitter_ms = 4, loss_percent = 1}]
        changes = [{at_s = 9, src = "a", dst = "b-2", mbps = 2}, {at_s = 4.5, node = "a", up_mbps = 6}]
    """
    network = parse_network(text, "all.toml")
    assert network.nodes == (NetworkNode(7, 8, 20, 3, name="a"), NetworkNode(1, 2, 9, 2, 1.5, 0.5, name="b-2"))
    assert network.links == (Link("a", "b-2", 0.5, 40, 4, 1),)
    assert network.changes == (
        Change(4.5, node="a", up_mbps=6),
        Change(9, src="a", dst="b-2", mbps=2),
    )
    assert network.random is None


def test_machines_are_read():
    text = GOOD.replace("[[nodes]]", "[[nodes]]\ncpu_quota = 0.5", 1) + (
        "memory_mb = 64\n[defaults]\ncpu_quota = 1\nmemory_mb = 8\n" + CPU_CHANGE.format(9, "a", 0.25)
    )
    network = parse_network(text + CPU_CHANGE.format(4, "b", 2), "net.toml")
    assert [(node.cpu_quota, node.memory_mb) for node in network.nodes] == [(0.5, 8), (1, 64)]
    assert network.cpu_changes == (CpuChange(4, "b", 2), CpuChange(9, "a", 0.25))
    assert network.limits_cpu
    assert not network.is_static
    drawn = parse_network(GOOD + CPU_RANDOM, "net.toml")
    assert drawn.cpu_random == CpuRedraws(1, 5, 0.1, 0.5)
    assert drawn.limits_cpu
    assert not drawn.is_static
    assert not parse_network(GOOD, "net.toml").limits_cpu


def test_roles_are_carried():
    text = "defaults = {server = false}\n" + GOOD.replace('"a"', '"a"\nworker = false\nserver = true', 1)
    roles = [(node.is_worker, node.is_server) for node in parse_network(text, "net.toml").nodes]
    assert roles == [(False, True), (True, False)]
    assert all(node.is_worker and node.is_server for node in parse_network(GOOD, "net.toml").nodes)


def test_sites_are_read():
    text = SITED.replace("= 60", "= 60\nqueue_ms = 70\ndelay_ms = 20\njitter_ms = 2\nloss_percent = 0.1")
    network = parse_network("defaults = {delay_ms = 4}\n" + text + SITE_CHANGE.format("s"), "net.toml")
    assert network.sites == (Site(50, 60, 70, 20, 2, 0.1, name="s"),), "defaults are of nodes"
    assert network.nodes[0] == NetworkNode(10, 20, delay_ms=4, name="a", site="s")
    assert network.changes == (Change(1, site="s", up_mbps=9),)
    assert network.site_of_nodes() == ("s", "b"), "a node in none is a site of its own"
    assert network.members("s") == ("a",)
    assert parse_network(GOOD, "net.toml").site_of_nodes() == ("a", "b")


def test_the_manuals_network_of_sites_is_one():
    manual = (Path(__file__).parents[2] / "docs" / "network-files.md").read_text()
    [example] = [block for block in re.findall(r"```toml\n(.*?)```", manual, re.DOTALL) if "[[sites]]" in block]
    assert parse_network(example, "network-files.md").site_of_nodes() == ("east", "east", "n2")


def test_a_round_trip_of_a_pair_may_take_what_two_far_nodes_do():
    assert len(parse_network(FAR_PAIR.format(back_ms=500), "far.toml").links) == 2


def test_random_draws_what_leads_to_the_core():
    drawn = SITED.replace("up_mbps = 50\ndown_mbps = 60", "").replace("up_mbps = 30\ndown_mbps = 40", "")
    network = parse_network(drawn + RANDOM, "net.toml")
    assert (network.sites[0].up_mbps, network.nodes[0].up_mbps, network.nodes[1].up_mbps) == (None, 10, None)
    inside = 'site = "s"\nqueue_ms = 4000'  # a queue beyond 32 bits at a rate that is drawn for the site alone
    parse_network(drawn.replace('site = "s"', inside) + RANDOM.replace("= 9", "= 10_000"), "net.toml")


def test_random_leaves_the_rates_open():
    network = parse_network('name = "net"' + RANDOM + BARE_NODES, "net.toml")
    assert network.random == RandomRedraws(1, 5, 1, 9)
    assert [(node.up_mbps, node.down_mbps) for node in network.nodes] == [(None, None)] * 2
    assert {node.queue_ms for node in network.nodes} == {DEFAULT_QUEUE_MS}


@pytest.mark.parametrize("name", sorted(carried_networks()))
def test_carried_networks_load_by_their_bare_name(name: str):
    assert load_network(find_network(name)).name == name


BAD = {
    "not TOML": ("name = ", "is not TOML"),
    "huge number in hexadecimal": (GOOD.replace("= 10", "= 0x" + "f" * 6000), "nodes[0].up_mbps is beyond all limits"),
    "huge number": (GOOD + "x = " + "9" * 5000, "is not TOML"),
    "no name": (NODES, "name is missing: give"),
    "name in capitals": (GOOD.replace('"net"', '"Net"'), "name is 'Net'"),
    "name too long": (GOOD.replace('"net"', '"' + "n" * 16 + '"'), "give 1 to 15"),
    "name with a dot": (GOOD.replace('"net"', '"a.b"'), "name is 'a.b'"),
    "name starting with a dash": (GOOD.replace('"a"', '"-a"'), "nodes[0].name is '-a'"),
    "name is a number": (GOOD.replace('"a"', "1"), "nodes[0].name is 1"),
    "unknown field": ("speed = 1\n" + GOOD, "speed is unknown: did you mean 'seed'? use"),
    "unknown node field": (GOOD + "cpus = 1", "nodes[1].cpus is unknown: use"),
    "unknown default": (GOOD + "[defaults]\nmtu = 9000", "defaults.mtu is unknown: use"),
    "unknown link field": (GOOD + LINK + "up_mbps = 1", "links[0].up_mbps is unknown: did you mean 'mbps'? use"),
    "unknown random field": (
        'name = "net"' + RANDOM + "end_s = 1" + BARE_NODES,
        "random.end_s is unknown: use",
    ),
    "a role is a number": (GOOD + "worker = 1", "nodes[1].worker is 1: give true or false"),
    "a default role is text": ('defaults = {server = "no"}\n' + GOOD, "defaults.server is 'no': give true or false"),
    "a node without a role": (
        GOOD + "worker = false\nserver = false",
        "nodes[1].worker and server are both false: give 'b' a role or remove it",
    ),
    "nobody works": ("defaults = {worker = false}\n" + GOOD, "nodes has no node with worker = true: give at least one"),
    "nobody serves": (
        "defaults = {server = false}\n" + GOOD,
        "nodes has no node with server = true: give at least one",
    ),
    "nodes is a table": (
        'name = "net"\n[nodes]\na = 1',
        "nodes: Expected `array`, got `object`: give 2 to 200 [[nodes]]",
    ),
    "a node is a number": ('name = "net"\nnodes = [1, 2]', "nodes[0] is 1"),
    "defaults is a list": ("defaults = []\n" + GOOD, "defaults: Expected `object`, got `array`"),
    "no nodes": ('name = "net"', "nodes is missing: give"),
    "one node": ('name = "net"\n[[nodes]]\nname = "a"\nup_mbps = 1\ndown_mbps = 1', "give 2 to 200 [[nodes]]"),
    "too many nodes": (
        'name = "net"\ndefaults = {up_mbps = 1, down_mbps = 1}\n'
        + "".join(f'[[nodes]]\nname = "n{index}"\n' for index in range(201)),
        "give 2 to 200",
    ),
    "same node twice": (GOOD.replace('"b"', '"a"'), "nodes[1] repeats an earlier name"),
    "no up rate": (GOOD.replace("up_mbps = 30", ""), "nodes[1].up_mbps is missing"),
    "no down rate": (GOOD.replace("down_mbps = 40", ""), "nodes[1].down_mbps is missing"),
    "zero rate": (GOOD.replace("= 10", "= 0"), "nodes[0].up_mbps is 0"),
    "negative rate": (GOOD.replace("= 10", "= -3.5"), "nodes[0].up_mbps is -3.5"),
    "rate too small": (GOOD.replace("= 10", "= 0.001"), "nodes[0].up_mbps is 0.001"),
    "rate too large": (GOOD.replace("= 10", "= 200_000"), "nodes[0].up_mbps is 200000"),
    "rate beyond any float": (GOOD.replace("= 10", "= 1" + "0" * 400), "nodes[0].up_mbps is beyond all limits"),
    "rate is not a number": (GOOD.replace("= 10", "= nan"), "nodes[0].up_mbps is nan"),
    "rate is infinite": (GOOD.replace("= 10", "= inf"), "nodes[0].up_mbps is inf"),
    "rate is text": (GOOD.replace("= 10", '= "10"'), "nodes[0].up_mbps is '10': give a number"),
    "rate is true": (GOOD.replace("= 10", "= true"), "nodes[0].up_mbps is True: give a number"),
    "bad default rate": (GOOD + "[defaults]\nup_mbps = -1", "defaults.up_mbps is -1"),
    "bad default queue": (GOOD + '[defaults]\nqueue_ms = "x"', "defaults.queue_ms is 'x'"),
    "no queue": (GOOD + "queue_ms = 0", "nodes[1].queue_ms is 0"),
    "queue beyond 32 bits": (
        GOOD.replace("= 40", "= 10_000") + "queue_ms = 4000",
        "nodes[1].queue_ms is 4000 at 10000 Mbit/s, a queue of 4 GiB and more: give at most 3435 ms",
    ),
    "queue beyond 32 bits after a change": (
        GOOD + 'queue_ms = 4000\n[[changes]]\nat_s = 1\nnode = "b"\nup_mbps = 10_000',
        "give at most 3435 ms",
    ),
    "queue beyond 32 bits at a drawn rate": (
        'name = "net"\ndefaults = {queue_ms = 4000}' + RANDOM.replace("= 9", "= 10_000") + BARE_NODES,
        "nodes[0].queue_ms is 4000 at 10000",
    ),
    "negative delay": (GOOD + "delay_ms = -1", "nodes[1].delay_ms is -1"),
    "jitter above delay": (GOOD + "delay_ms = 1\njitter_ms = 2", "nodes[1].jitter_ms is 2"),
    "a delay beyond what connections wait": (
        GOOD + "delay_ms = 701",
        "nodes[1].delay_ms is 701: give a number from 0 to 700 ms",
    ),
    "with its jitter": (GOOD + "delay_ms = 400\njitter_ms = 301", "nodes[1].jitter_ms is 301 beside a delay of 400 ms"),
    "a pair's delay on top of those of its ends": (
        "defaults = {delay_ms = 700}\n" + GOOD + LINK + "delay_ms = 1",
        "links[0].delay_ms, with jitter_ms and the delays of both ends, makes a round trip of 2801 ms: give",
    ),
    "a pair's delays in both directions": (
        FAR_PAIR.format(back_ms=501),
        "makes a round trip of 2801 ms: give delays of at most 2800 ms together",
    ),
    "loss above all": (GOOD + "loss_percent = 101", "nodes[1].loss_percent is 101"),
    "loss of all": (GOOD + "loss_percent = 100", "nodes[1].loss_percent is 100: give a number from 0 to 99 percent"),
    "link from nowhere": (GOOD + LINK.replace('src = "a"', 'src = "z"'), "links[0].src is 'z', which is no node"),
    "link to nowhere": (GOOD + LINK.replace('dst = "b"', ""), "links[0].dst is missing: give"),
    "link to itself": (GOOD + LINK.replace('dst = "b"', 'dst = "a"'), "links[0].dst is 'a', the same as src"),
    "link twice": (GOOD + LINK + LINK, "links[1] repeats an earlier src and dst"),
    "link without a rate": (GOOD + LINK.replace("mbps = 5", ""), "links[0].mbps is missing: give"),
    "change without a time": (
        GOOD + '[[changes]]\nnode = "a"\nup_mbps = 1',
        "changes[0].at_s is missing: give",
    ),
    "change at the start": (GOOD + '[[changes]]\nat_s = 0\nnode = "a"\nup_mbps = 1', "changes[0].at_s is 0"),
    "change of nothing": (GOOD + "[[changes]]\nat_s = 1\nup_mbps = 1", "changes[0].node is missing"),
    "change to nothing": (
        GOOD + '[[changes]]\nat_s = 1\nnode = "a"',
        "changes[0].node is given: give up_mbps, down_mbps or both",
    ),
    "change of an unknown node": (GOOD + '[[changes]]\nat_s = 1\nnode = "z"\nup_mbps = 1', "changes[0].node is 'z'"),
    "change of node and pair": (
        GOOD + LINK + '[[changes]]\nat_s = 1\nnode = "a"\ndst = "b"\nup_mbps = 1',
        "changes[0].node is given: give up_mbps, down_mbps or both with it, and no src",
    ),
    "change of a pair's up rate": (
        GOOD + LINK + '[[changes]]\nat_s = 1\nsrc = "a"\ndst = "b"\nup_mbps = 1',
        "changes[0].node is missing",
    ),
    "change of an undeclared pair": (
        GOOD + '[[changes]]\nat_s = 1\nsrc = "a"\ndst = "b"\nmbps = 1',
        "declare it in [[links]]",
    ),
    "change twice at once": (
        GOOD + 2 * '[[changes]]\nat_s = 1\nnode = "a"\nup_mbps = 1\n',
        "changes[1] repeats an earlier at_s and node",
    ),
    "random and a rate": (
        'name = "net"' + RANDOM + NODES,
        "nodes[0].up_mbps is given, there or in [defaults], although [random] draws it",
    ),
    "random and a default rate": (
        'name = "net"' + RANDOM + BARE_NODES + "[defaults]\ndown_mbps = 1",
        "nodes[0].down_mbps is given, there or in [defaults], although",
    ),
    "random and a node's change": (
        'name = "net"' + RANDOM + BARE_NODES + '[[changes]]\nat_s = 1\nnode = "a"\nup_mbps = 1',
        "changes[0].node changes a rate that [random] draws",
    ),
    "random without a seed": (
        'name = "net"' + RANDOM.replace("seed = 1", "") + BARE_NODES,
        "random.seed is missing: give",
    ),
    "random with a fractional seed": (
        'name = "net"' + RANDOM.replace("seed = 1", "seed = 1.5") + BARE_NODES,
        "random.seed is 1.5",
    ),
    "random too often": (
        'name = "net"' + RANDOM.replace("every_s = 5", "every_s = 0") + BARE_NODES,
        "random.every_s is 0",
    ),
    "a site that is not there": (
        SITED.replace('site = "s"', 'site = "z"'),
        "sites[0].name is 's', which no node names: give it a node or remove it",
    ),
    "a node of a site that is not there": (
        SITED.replace('"b"', '"b"\nsite = "z"'),
        "nodes[1].site is 'z', which is no site: declare it in [[sites]]",
    ),
    "a site of no sites": (GOOD + 'site = "s"', "nodes[1].site is 's', which is no site: declare it in [[sites]]"),
    "a default site": (GOOD + '[defaults]\nsite = "s"', "defaults.site is unknown: use"),
    "a site like a node": (
        SITED.replace('"s"', '"b"'),
        "sites[0].name is 'b', which is a node's: give it another",
    ),
    "same site twice": (
        SITED + '[[sites]]\nname = "s"\nup_mbps = 1\ndown_mbps = 1\n',
        "sites[1] repeats an earlier name: give each site its own",
    ),
    "too many sites": (
        GOOD + "".join(f'[[sites]]\nname = "s{index}"\n' for index in range(51)),
        "sites has 51: give at most 50 sites",
    ),
    "a site's unknown field": (SITED.replace("= 60", "= 60\ncpu_quota = 1"), "sites[0].cpu_quota is unknown: use"),
    "a site without a rate": (
        SITED.replace("down_mbps = 60", ""),
        "sites[0].down_mbps is missing: give it there, or let [random] draw all rates",
    ),
    "a site's negative rate": (SITED.replace("= 60", "= -1"), "sites[0].down_mbps is -1: give a number"),
    "a site's jitter above its delay": (SITED.replace("= 60", "= 60\njitter_ms = 2"), "sites[0].jitter_ms is 2"),
    "a site's queue beyond 32 bits": (
        SITED.replace("= 60", "= 10_000\nqueue_ms = 4000"),
        "sites[0].queue_ms is 4000 at 10000 Mbit/s",
    ),
    "delays of node and site beyond what connections wait": (
        "defaults = {delay_ms = 400}\n" + SITED.replace("= 60", "= 60\ndelay_ms = 301"),
        "nodes[0].delay_ms, or that of a trace, and jitter_ms come on top of those of site 's': give at most 700 ms together",
    ),
    "change of an unknown site": (
        SITED + SITE_CHANGE.format("z"),
        "changes[0].site is 'z', which is no site: declare it",
    ),
    "change of a node as a site": (SITED + SITE_CHANGE.format("b"), "changes[0].site is 'b', which is no site"),
    "change of a site to nothing": (
        SITED + SITE_CHANGE.format("s").replace("up_mbps = 9", ""),
        "changes[0].site is given: give up_mbps, down_mbps or both with it",
    ),
    "change of a site and a node": (
        SITED + SITE_CHANGE.format("s") + 'node = "b"',
        "changes[0].site is given beside node: keep one of the two",
    ),
    "change of a site twice at once": (
        SITED + 2 * SITE_CHANGE.format("s"),
        "changes[1] repeats an earlier at_s and node, site or pair",
    ),
    "drawn rates and a site's": (SITED + RANDOM, "nodes[1].up_mbps is given, there or in [defaults], although"),
    "drawn rates and a site's change": (
        SITED.replace("up_mbps = 50\ndown_mbps = 60", "").replace("up_mbps = 30\ndown_mbps = 40", "")
        + RANDOM
        + SITE_CHANGE.format("s"),
        "changes[0].site changes a rate that [random] draws",
    ),
    "drawn rates and a node of a site without": (
        'name = "net"' + RANDOM + BARE_NODES + 'site = "s"\n[[sites]]\nname = "s"\n',
        "nodes[1].up_mbps is missing: give it there or in [defaults]",
    ),
    "no CPU at all": (GOOD + "cpu_quota = 0", "nodes[1].cpu_quota is 0: give a number from 0.01 to 1024 cores"),
    "more CPU than there is": (GOOD + "cpu_quota = 2000", "nodes[1].cpu_quota is 2000"),
    "CPU in words": (GOOD + 'cpu_quota = "half"', "nodes[1].cpu_quota is 'half': give a number"),
    "bad default quota": (GOOD + "[defaults]\ncpu_quota = nan", "defaults.cpu_quota is nan"),
    "negative memory": (GOOD + "memory_mb = -1", "nodes[1].memory_mb is -1"),
    "absurd memory": (GOOD + "memory_mb = 1e9", "nodes[1].memory_mb is 1000000000.0"),
    "CPU change of an unknown node": (GOOD + CPU_CHANGE.format(1, "z", 1), "cpu_changes[0].node is 'z'"),
    "CPU change at the start": (GOOD + CPU_CHANGE.format(0, "a", 1), "cpu_changes[0].at_s is 0"),
    "CPU change without a quota": (
        GOOD + '[[cpu_changes]]\nat_s = 1\nnode = "a"',
        "cpu_changes[0].cpu_quota is missing: give",
    ),
    "CPU change of a rate": (
        GOOD + CPU_CHANGE.format(1, "a", 1) + "mbps = 1",
        "cpu_changes[0].mbps is unknown: use",
    ),
    "CPU change twice at once": (
        GOOD + 2 * CPU_CHANGE.format(1, "a", 1),
        "cpu_changes[1] repeats an earlier at_s and node",
    ),
    "drawn CPU and a quota": (GOOD + "cpu_quota = 1" + CPU_RANDOM, "although [cpu_random] draws it"),
    "drawn CPU and a default": (
        GOOD + "[defaults]\ncpu_quota = 1" + CPU_RANDOM,
        "nodes[0].cpu_quota is given, there or in [defaults], although",
    ),
    "drawn CPU and a change": (
        GOOD + CPU_RANDOM + CPU_CHANGE.format(1, "a", 1),
        "cpu_changes[0].node changes a quota that [cpu_random] draws",
    ),
    "drawn CPU without a seed": (
        GOOD + CPU_RANDOM.replace("seed = 1", ""),
        "cpu_random.seed is missing: give",
    ),
    "drawn CPU upside down": (GOOD + CPU_RANDOM.replace("0.1", "0.6"), "cpu_random.low_cpu_quota is above"),
    "drawn CPU with an unknown field": (
        GOOD + CPU_RANDOM + "nodes = 1",
        "cpu_random.nodes is unknown: use",
    ),
    "random upside down": (
        'name = "net"' + RANDOM.replace("low_mbps = 1", "low_mbps = 10") + BARE_NODES,
        "random.low_mbps is above",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_named_in_one_line(case: str):
    text, expected = BAD[case]
    with pytest.raises(InputError) as caught:
        parse_network(text, "bad.toml")
    message = str(caught.value)
    assert message.startswith("bad.toml: ")
    assert expected in message
    assert "\n" not in message
    assert message.count(": ") >= 2, "names the remedy after a colon"


@given(st.text())
def test_any_text_is_an_input_error(text: str):
    with pytest.raises(InputError) as caught:  # no random text is a whole network
        parse_network(text, "x")
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_input_errors(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_network(tmp_path / "absent.toml")
    with pytest.raises(InputError, match="Is a directory"):
        load_network(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_network(binary)
    with pytest.raises(InputError, match="wan4-static"):
        find_network("no-such-network")
