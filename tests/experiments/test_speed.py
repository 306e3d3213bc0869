import numpy as np
import pytest

from experiments.networks import random_network
from experiments.speed import ceilings, ceilings_of, speed, stock_shares
from nalb import workloads
from nalb.errors import InputError
from nalb.planning.nodes import Capacities
from nalb.reporting.record import read_record
from tests.reporting.runs import write_fake_run

NAMES = [f"n{i}" for i in range(12)]


@pytest.mark.parametrize("model", workloads.NAMES)
def test_stock_shares_follow_the_servers_ranks_and_lose_no_byte(model):
    shares = stock_shares(model, NAMES, NAMES)
    assert shares.sum() == sum(t.size_bytes for t in workloads.load(model))
    turned = NAMES[1:] + NAMES[:1]  # rank 0 is on n1
    assert np.array_equal(np.roll(shares, 1), stock_shares(model, NAMES, turned))


def test_alexnets_shares_by_hand():
    """MXNet's rule written once more: below 10^6 elements whole by key, above in twelfths."""
    by_hand = np.zeros(12)
    for key, tensor in enumerate(workloads.load("alexnet")):
        if tensor.elements < 10**6:
            by_hand[key * 9973 % 12] += tensor.size_bytes
        else:
            by_hand += tensor.size_bytes / 12
    assert np.allclose(stock_shares("alexnet", NAMES, NAMES), by_hand, atol=4 * 16)


@pytest.mark.parametrize(("model", "median"), [("mobilenet", 2.10), ("resnet50", 1.89), ("alexnet", 1.80)])
def test_ceilings_over_many_draws(model, median):
    """12 rates of 20 to 220 Mbit/s: stock's median, which lies between 1.9 and 2.2 for MobileNet from seed to seed.

    Equal shares are never worse than (M + 10 M/12) / M: the slowest node carries at least M.
    """
    draws = np.random.default_rng(1)
    found = []
    for _ in range(200):
        rates = draws.uniform(20, 220, 12)
        found.append(ceilings(model, NAMES, NAMES, Capacities.from_lists(rates, rates)))
    assert np.median([one.over_stock for one in found]) == pytest.approx(median, abs=0.1)
    assert max(one.over_average for one in found) <= 22 / 12 + 1e-9
    assert min(min(one.over_stock, one.over_average) for one in found) >= 1


def test_speed_is_equation_16_over_the_iterations_that_count(tmp_path):
    write_fake_run(tmp_path, ("stock",), iterations=5)
    record = read_record(tmp_path)
    times = record.run.schemes["stock"].iteration_s[2:]
    assert speed(record, "stock") == pytest.approx(60 * 32 * 4 / np.mean(times))


def test_a_run_that_does_not_say_the_ranks_has_no_ceilings(tmp_path):
    write_fake_run(tmp_path)
    record = read_record(tmp_path)
    rates = Capacities.from_lists([1e6, 2e6, 3e6, 4e6], [1e6, 2e6, 3e6, 4e6])
    with pytest.raises(InputError, match="server rank"):
        ceilings_of(record, rates)
    record.servers = ["n2", "n0", "n1", "n3"]
    assert ceilings_of(record, rates) == ceilings("mobilenet", record.nodes, record.servers, rates)


def test_random_networks_rates_are_the_generators():
    text = random_network("x", 3, 5)
    rates = np.round(np.random.default_rng(5).uniform(20, 220, 3), 1)
    assert all(f"up_mbps = {rate}" in text for rate in rates)
