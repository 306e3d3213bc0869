"""The flags of scripts/federated_accuracy.py."""

import pytest

pytest.importorskip("mxnet")
from nalb.errors import InputError
from scripts.federated_accuracy import parse_variants


def test_variants_are_known_ones_and_the_first_is_what_others_are_held_against():
    assert parse_variants("FedAvg, rate by size") == ["FedAvg", "rate by size"]
    with pytest.raises(InputError, match=r"--variants 'LBBSP' is unknown: choose of FedAvg, LB-BSP"):
        parse_variants("FedAvg,LBBSP")
    with pytest.raises(InputError, match="name it first"):
        parse_variants("LB-BSP,FedAvg")
