"""What CPU time tells of a node's cores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.measurement.cores import CoreEstimator, Work

MB = 1e6


def learn(works):
    """The times that an estimator of as many nodes gives after these (Work, shares)."""
    cores = CoreEstimator(len(works[0][1]))
    for work, shares in works:
        cores.observe_work(Work(*(np.array(one, dtype=np.float64) for one in work)), np.array(shares, dtype=np.float64))
    return cores.times()


@given(
    st.lists(st.tuples(st.floats(0.1, 8), st.floats(0, 1), st.floats(1, 20)), min_size=2, max_size=6),
    st.floats(1e-9, 1e-7),
)
def test_work_that_is_linear_in_the_share_is_found_whatever_the_cores(nodes, of_byte_s):
    cores, worker_s, share_mb = np.array(nodes).T
    shares = share_mb * MB
    times = learn([((worker_s, of_byte_s * shares, cores), shares)])
    np.testing.assert_allclose(times.of_shares(2 * shares), (worker_s + 2 * of_byte_s * shares) / cores)


def test_a_byte_that_costs_one_node_more_is_seen():
    shares, of_byte_s = np.full(4, 2 * MB), np.array([5e-9, 5e-9, 5e-9, 20e-9])
    times = learn([((np.zeros(4), of_byte_s * shares, np.ones(4)), shares)] * 8)
    assert times.s_per_byte[3] / times.s_per_byte[0] > 2


def test_a_server_that_is_given_nothing_does_not_stay_dear():
    """Wakings cost a server 5 ms whatever it sums. By its own share alone a byte would seem to cost it a hundred times as much."""
    shares = np.array([6 * MB, 6 * MB, 0.01 * MB])
    times = learn([((np.zeros(3), 5e-9 * shares + 0.005, np.ones(3)), shares)] * 20)
    assert times.s_per_byte[2] < 1.5 * times.s_per_byte[0]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_a_node_does_not_report_is_not_made_up(place):
    work = [[0.1, 0.1], [0.2, 0.2], [1.0, 1.0]]
    work[place][1] = np.nan
    assert learn([(work, [MB, MB])]) is None


def test_before_anything_is_known_there_are_no_times():
    assert CoreEstimator(3).times() is None
