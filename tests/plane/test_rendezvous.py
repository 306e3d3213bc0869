"""Agents' places as a launcher tells them."""

import pytest

from nalb.errors import InputError
from nalb.plane.rendezvous import AGENTS, told_agents


def test_agents_by_rank():
    assert told_agents({AGENTS: "10.0.0.1:5000, [fd00::2]:5001"}, 2) == [("10.0.0.1", 5000), ("[fd00::2]", 5001)]
    assert told_agents({}, 2) is None
    assert told_agents({AGENTS: ""}, 2) is None


@pytest.mark.parametrize("text", ["10.0.0.1:5000", "10.0.0.1:5000,10.0.0.2", "a:1,b:70000", "a:1,:2", "a:1,b:x"])
def test_what_cannot_be_read_is_named(text):
    with pytest.raises(InputError, match=r"environment variable NALB_AGENTS=.*each of the 2 ranks"):
        told_agents({AGENTS: text}, 2)
