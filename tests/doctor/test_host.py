"""The address that a job on this machine announces."""

import pytest

from nalb.doctor.host import check_address

HERE = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.2"], "eth1": ["10.1.0.9", "10.1.0.2"]}


@pytest.mark.parametrize(
    ("environ", "detail"),
    [
        ({"NALB_ADDRESS": "10.1.0.9", "DMLC_NODE_HOST": "10.0.0.2"}, "10.1.0.9 on eth1, from NALB_ADDRESS"),
        ({"NALB_ADDRESS": "10.0.0.2", "GLOO_SOCKET_IFNAME": "eth1"}, "10.0.0.2 on eth0, from NALB_ADDRESS"),
        ({"GLOO_SOCKET_IFNAME": "eth1,eth0", "DMLC_INTERFACE": "eth0"}, "10.1.0.2 on eth1, by GLOO_SOCKET_IFNAME"),
        ({"DMLC_INTERFACE": "eth1"}, "10.1.0.9 on eth1, by DMLC_INTERFACE"),
        ({}, "10.0.0.2 on eth0, by the default route"),
    ],
)
def test_variables_of_pytorch_come_before_those_of_mxnet_and_the_route(environ, detail):
    (finding,) = check_address(environ, lambda: HERE, lambda: "eth0")
    assert (finding.verdict, finding.detail) == ("ok", detail)


@pytest.mark.parametrize(
    ("environ", "verdict", "detail"),
    [
        ({"NALB_ADDRESS": "10.0.0.7"}, "FAIL", "NALB_ADDRESS='10.0.0.7' is no address of this machine"),
        ({"GLOO_SOCKET_IFNAME": "eth9"}, "FAIL", "GLOO_SOCKET_IFNAME='eth9' has no IPv4 address"),
        ({"DMLC_INTERFACE": "eth0,eth1"}, "FAIL", "DMLC_INTERFACE='eth0,eth1' has no IPv4 address"),
        (
            {"GLOO_SOCKET_IFNAME": "lo"},
            "warn",
            "127.0.0.1 on lo, by GLOO_SOCKET_IFNAME: only this machine can reach it",
        ),
    ],
)
def test_an_address_that_others_do_not_reach_is_told(environ, verdict, detail):
    (finding,) = check_address(environ, lambda: HERE, lambda: "eth0")
    assert (finding.verdict, finding.detail) == (verdict, detail)
    assert finding.advice
