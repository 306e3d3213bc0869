"""Sites by their laws: every node in exactly one, numbered by first appearance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.planning.sites import Sites


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12))
def test_every_node_is_a_member_of_its_own_site_alone(names: list[str]) -> None:
    sites = Sites(tuple(names))
    assert sorted(node for members in sites.members for node in members) == list(range(len(names)))
    for node, name in enumerate(names):
        assert sites.names[sites.of_node[node]] == name
        assert node in sites.members[sites.of_node[node]]
    assert [members[0] for members in sites.members] == sorted(members[0] for members in sites.members)
    assert sites.count == len(set(names))


def test_flat_sites_are_the_nodes() -> None:
    sites = Sites.flat(["n0", "n1", "n2"])
    assert sites.count == len(sites.name_of_node)
    assert sites.count == 3
    assert sites.of_node == (0, 1, 2)
    assert sites.members == ((0,), (1,), (2,))


def test_a_site_needs_a_name_and_nodes_their_own() -> None:
    with pytest.raises(InputError, match="node 1 has a site without a name"):
        Sites(("a", ""))
    with pytest.raises(InputError, match="share a name"):
        Sites.flat(["n0", "n0"])
    with pytest.raises(InputError, match="no nodes"):
        Sites(())
