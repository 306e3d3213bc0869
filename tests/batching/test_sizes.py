import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nalb.batching.sizes import Bounds, apportion, fastest
from nalb.batching.time_models import Polynomial, fit
from nalb.errors import InputError

from ..planning.strategies import laws
from .strategies import all_sizes, bounds_of, speeds, stairs


@st.composite
def weighted(draw: st.DrawFn, kinds: st.SearchStrategy[Bounds]) -> tuple[Bounds, list[float]]:
    bounds = draw(kinds)
    return bounds, draw(st.lists(speeds, min_size=len(bounds.least), max_size=len(bounds.least)))


@laws
@given(weighted(bounds_of()))
def test_apportioned_sizes_keep_total_and_bounds(case):
    bounds, weights = case
    assert bounds.keeps(apportion(weights, bounds))


@laws
@given(weighted(bounds_of()), st.floats(1e-6, 1e6))
def test_only_the_ratio_of_weights_counts_but_for_ties(case, factor):
    bounds, weights = case
    sizes, scaled = apportion(weights, bounds), apportion([weight * factor for weight in weights], bounds)
    assert max(abs(a - b) for a, b in zip(sizes, scaled, strict=True)) <= 1


@laws
@given(st.lists(speeds, min_size=1, max_size=8), st.integers(0, 500))
def test_without_tight_bounds_every_size_is_within_one_of_its_quota(weights, spare):
    total = len(weights) + spare
    bounds = Bounds.of(total, len(weights))
    quotas = total * np.array(weights) / sum(weights)
    assume((quotas >= 1).all())
    assert (np.abs(np.array(apportion(weights, bounds)) - quotas) < 1 + 1e-6).all()


@laws
@given(weighted(bounds_of()), st.randoms(use_true_random=False))
def test_permuted_workers_permute_the_sizes(case, shuffler):
    bounds, weights = case
    order = list(range(len(weights)))
    shuffler.shuffle(order)
    sizes = apportion(weights, bounds)
    permuted = Bounds(bounds.total, tuple(bounds.least[i] for i in order), tuple(bounds.most[i] for i in order))
    again = apportion([weights[i] for i in order], permuted)
    differing = [weights[i] for i, size in zip(order, again, strict=True) if size != sizes[i]]
    # ties of remainders go to the lower index, which a permutation changes: whole samples apart and nothing else
    quotas = np.array(differing) * sum(sizes) / sum(weights)
    assert not differing or (len(differing) >= 2 and len(set(np.round(quotas % 1, 6))) < len(differing))


@laws
@given(weighted(bounds_of(max_spare=60)))
def test_apportioned_by_speed_is_never_slower_than_equal_sizes(case):
    bounds, weights = case
    equal = apportion([1.0] * len(weights), bounds)
    times = [max(x / v for x, v in zip(sizes, weights, strict=True)) for sizes in (apportion(weights, bounds), equal)]
    assert times[0] <= times[1] * (1 + 1e-9)


@st.composite
def staired(draw: st.DrawFn) -> tuple[Bounds, list[list[float]]]:
    bounds = draw(bounds_of(max_workers=4, max_spare=6))
    step = st.sampled_from([0.0, 0.25, 1.0, 1.5, 4.0])  # few values: many ties
    return bounds, [draw(st.lists(step, min_size=most, max_size=most)) for most in bounds.most]


@laws
@given(staired())
def test_fastest_is_the_brute_force_optimum(case):
    bounds, steps = case
    curves = [stairs(rise) for rise in steps]
    sizes, time_s = fastest(curves, bounds)
    assert bounds.keeps(sizes)
    cost = {chosen: max(np.cumsum(rise)[x - 1] for rise, x in zip(steps, chosen)) for chosen in all_sizes(bounds)}  # noqa: B905
    assert time_s == cost[sizes] == min(cost.values())


@laws
@given(staired(), st.randoms(use_true_random=False))
def test_fastest_time_does_not_depend_on_the_order_of_workers(case, shuffler):
    bounds, steps = case
    order = list(range(len(steps)))
    shuffler.shuffle(order)
    permuted = Bounds(bounds.total, tuple(bounds.least[i] for i in order), tuple(bounds.most[i] for i in order))
    _, time_s = fastest([stairs(rise) for rise in steps], bounds)
    assert fastest([stairs(steps[i]) for i in order], permuted)[1] == time_s


def test_fastest_permutes_with_workers_where_no_two_steps_tie():
    curves = [Polynomial((0.01, a1)) for a1 in (0.0011, 0.0023, 0.0047)]
    sizes, _ = fastest(curves, Bounds.of(100, 3))
    assert fastest(curves[::-1], Bounds.of(100, 3))[0] == sizes[::-1]


def test_a_fit_that_falls_counts_as_flat():
    falling = Polynomial((2.0, -0.1))
    sizes, time_s = fastest([falling, Polynomial((0.0, 1.0))], Bounds.of(10, 2))
    assert (sizes, time_s) == ((9, 1), 1.9)


@laws
@given(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=4), st.integers(4, 12))
def test_a_cubic_is_found_again_from_powers_of_two(coefficients, points):
    cubic = Polynomial(tuple(a / 256.0**k for k, a in enumerate(coefficients)))
    sizes = [2**p for p in range(points)]
    found = fit(sizes, [float(t) for t in cubic(np.array(sizes, dtype=float))])
    between = np.linspace(1, sizes[-1], 50)
    np.testing.assert_allclose(found(between), cubic(between), rtol=1e-5)


def test_few_points_give_a_lower_degree():
    assert fit([8], [0.4]).coefficients_s == pytest.approx((0.0, 0.05))
    assert fit([8, 16], [0.5, 0.9]).coefficients_s == pytest.approx((0.1, 0.05))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bounds(10, (1, 1), (4, 5)), "does not fit"),
        (lambda: Bounds(10, (0, 1), (40, 50)), "worker 0 may have 0"),
        (lambda: Bounds(1, (), ()), "one each per worker"),
        (lambda: Bounds.of(0, 2), "does not fit"),
        (lambda: apportion([1.0, 0.0], Bounds.of(10, 2)), "one positive number per worker"),
        (lambda: apportion([1.0], Bounds.of(10, 2)), "one positive number per worker"),
        (lambda: fastest([Polynomial((1.0,))], Bounds.of(10, 2)), "1 compute curves for 2 workers"),
        (lambda: fastest([lambda x: x * np.nan] * 2, Bounds.of(10, 2)), "curve of worker 0 is not finite"),
        (lambda: fit([], []), "pairs of positive numbers"),
        (lambda: fit([4, 8], [1.0, -1.0]), "pairs of positive numbers"),
        (lambda: Polynomial(()), "finite coefficient"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_wrong_weights_are_told_the_first_ten_of_them():
    with pytest.raises(
        InputError, match=r"1000 weights for 1000 workers, not positive: (0, ){9}0 and 490 more: give one"
    ):
        apportion([0.0, 1.0] * 500, Bounds.of(2000, 1000))
    with pytest.raises(InputError, match=r"2 weights for 3 workers, not positive: none: give one"):
        apportion([1.0, 1.0], Bounds.of(10, 3))
