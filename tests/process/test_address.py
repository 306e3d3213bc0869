"""Where the other ranks reach this one."""

import pytest

from nalb.errors import InputError
from nalb.process import address
from nalb.process.address import address_of, interface_of, own_address


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({"NALB_ADDRESS": "10.1.2.3", "MASTER_ADDR": "127.0.0.1"}, "10.1.2.3"),
        ({"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "10.0.0.1"}, "127.0.0.1"),
        ({"MASTER_ADDR": "127.0.0.1"}, "127.0.0.1"),
        ({"MASTER_ADDR": "localhost"}, "127.0.0.1"),
        ({"MASTER_ADDR": "127.0.0.9"}, "127.0.0.1"),
    ],
)
def test_own_address(environ, address):
    assert own_address(environ) == address


def test_the_interface_of_an_address():
    assert (interface_of("127.0.0.1"), interface_of("192.0.2.1")) == ("lo", None)


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({}, "MASTER_ADDR is not set"),
        ({"NALB_ADDRESS": "node1"}, "no IPv4 address"),
        ({"NALB_ADDRESS": "fd00::1"}, "no IPv4 address"),
        ({"MASTER_ADDR": "::1"}, "an IPv6 address: name an IPv4 one"),
        ({"GLOO_SOCKET_IFNAME": "eth99"}, "no interface eth99"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "no route"),
    ],
)
def test_no_address(environ, word):
    with pytest.raises(InputError, match=word):
        own_address(environ)


def test_a_loopback_address_serves_ranks_of_one_machine_only(monkeypatch):
    monkeypatch.setattr("nalb.process.address.towards", lambda _: "127.0.1.1")
    assert own_address({"MASTER_ADDR": "vm", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}) == "127.0.1.1"
    with pytest.raises(InputError, match="set NALB_ADDRESS"):
        own_address({"MASTER_ADDR": "vm", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"})


def test_a_number_is_no_address():
    """The C library takes each of these for an address, as 4 for 0.0.0.4."""
    assert address_of("10.0.0.1") == "10.0.0.1"
    assert address_of("localhost") == "127.0.0.1"
    for number in ("4", "1.2", "0x7f000001", "010.0.0.1"):
        with pytest.raises(ValueError, match=r"Expected 4 octets|Leading zeros"):
            address_of(number)


def test_machines_of_one_name_are_told_apart(tmp_path, monkeypatch):
    found = set()
    for boot in ("one\n", "another\n"):
        (tmp_path / "boot_id").write_text(boot)
        monkeypatch.setattr(address, "BOOT", str(tmp_path / "boot_id"))
        found |= {address.own_machine({"NALB_NODE": "ubuntu"}), address.own_machine({"NALB_NODE": "ubuntu"})}
    assert found == {"ubuntu one", "ubuntu another"}
