import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.batching.decisions import Observation
from nalb.batching.schemes import BASELINES, PREDICTORS, SCHEMES, BatchJob, build
from nalb.batching.time_models import Polynomial
from nalb.errors import InputError

from ..planning.strategies import laws
from .workers import observe, proportional, train

HETERO_L2 = (100.0, 80.0, 66.0, 50.0)  # samples/s; the slowest 1/2 of the fastest (Chen et al., 5.4.2)
HETERO_L3 = (100.0, 80.0, 50.0, 33.4)  # 1/3


@st.composite
def jobs(draw: st.DrawFn) -> BatchJob:
    workers = draw(st.integers(1, 6))

    def each(values):
        return tuple(draw(st.lists(values, min_size=workers, max_size=workers)))

    sizes = each(st.integers(1, 64))
    most = each(st.integers(3, 80))
    return BatchJob(
        sizes,
        most if draw(st.booleans()) and sum(most) >= sum(sizes) else None,
        each(st.floats(0.5, 64)) if draw(st.booleans()) else None,
        tuple(Polynomial((0.001, slope)) for slope in each(st.floats(1e-4, 1e-2))) if draw(st.booleans()) else None,
    )


@laws
@given(st.sampled_from(sorted(SCHEMES)), jobs(), st.integers(0, 2**32 - 1))
def test_every_decision_keeps_total_and_bounds(scheme, job, seed):
    generator = np.random.default_rng(seed)
    controller, sizes = build(scheme, job)
    assert job.bounds.keeps(sizes)
    for _ in range(30):
        times = generator.lognormal(0, 1, len(sizes))
        memory = generator.uniform(0, 1)
        decision = controller.update(observe(sizes, times, memory_share=float(memory)))
        assert decision.sizes != sizes
        assert decision.reason
        assert decision.sizes is None or job.bounds.keeps(decision.sizes)
        sizes = decision.sizes or sizes


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_same_observations_same_decisions(scheme):
    runs = []
    for _ in range(2):
        controller, sizes = build(scheme, BatchJob((32,) * 4))
        runs.append(train(controller, sizes, proportional(HETERO_L3, noise=0.1, seed=7), 40)[2])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - {"lb-bsp-gpu"}))
def test_permuted_workers_permute_the_decisions(scheme):
    speeds, order = (97.3, 61.9, 50.7, 31.1), (2, 0, 3, 1)
    ran = []
    for who in (range(4), order):
        controller, sizes = build(scheme, BatchJob((32,) * 4))
        ran.append(train(controller, sizes, proportional([speeds[i] for i in who]), 30)[1])
    assert [tuple(sizes[i] for i in order) for sizes in ran[0]] == ran[1]


@pytest.mark.parametrize("speeds", [HETERO_L2, HETERO_L3])
@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - {"off", "lb-bsp-gpu"}))
def test_uneven_workers_converge_to_the_ideal(scheme, speeds):
    controller, sizes = build(scheme, BatchJob((32,) * 4))
    times, ran, _ = train(controller, sizes, proportional(speeds, noise=0.01, seed=11), 40)
    ideal_s = 128 / sum(speeds)
    settled = np.mean([now.max() for now in times[10:]])
    assert all(sum(sizes) == 128 for sizes in ran)
    assert settled <= 1.10 * ideal_s
    if speeds == HETERO_L3:
        assert settled <= 0.7 * 32 / min(speeds)


@pytest.mark.parametrize("speeds", [HETERO_L2, HETERO_L3])
def test_steps_converge_to_the_ideal_too(speeds):
    controller, sizes = build("lb-bsp-gpu", BatchJob((32,) * 4))
    times, _, _ = train(controller, sizes, proportional(speeds, noise=0.01, seed=11), 150)
    assert np.mean([now.max() for now in times[100:]]) <= 1.10 * 128 / sum(speeds)


@pytest.mark.jobs
@pytest.mark.parametrize("predictor", sorted(PREDICTORS))
def test_every_predictor_balances_steady_workers(predictor):
    job = BatchJob((32,) * 4, predictors=tuple(PREDICTORS[predictor](worker) for worker in range(4)))
    controller, sizes = build("lb-bsp", job)
    times, _, _ = train(controller, sizes, proportional(HETERO_L3, noise=0.01, seed=11), 60)
    assert np.mean([now.max() for now in times[30:]]) <= 1.10 * 128 / sum(HETERO_L3)


@pytest.mark.parametrize("scheme", ["lb-bsp", "joint"])
def test_by_default_sizes_follow_a_change_of_speed_in_the_next_iteration(scheme):
    controller, sizes = build(scheme, BatchJob((50, 50)))
    for _ in range(10):
        assert controller.update(observe(sizes, (1.0, 1.0))).sizes is None
    assert controller.update(observe(sizes, (4.0, 1.0))).sizes == (20, 80)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_an_answer_that_has_not_taken_effect_is_given_again(scheme):
    """Where the next iteration does not wait, a controller may see the old sizes once more."""
    controller, _ = build(scheme, BatchJob((40, 40, 40)))
    answers = [controller.update(observe((40, 40, 40), (1.0, 1.1, 1.2))).sizes for _ in range(8)]
    assert all(answer is None or sum(answer) == 120 for answer in answers)
    given_twice = {answer for answer in answers if answer is not None}
    assert len(given_twice) <= 1


def test_starting_sizes_outside_the_bounds_are_brought_within():
    _, sizes = build("off", BatchJob((60, 20, 20), most=(30, 50, 50)))
    assert sizes == (30, 35, 35)


def test_baselines_are_data():
    assert {name: baseline.iterations_ahead for name, baseline in BASELINES.items()} == {
        "bsp": 0,
        "asp": None,
        "ssp": 5,
    }
    assert {name for name, scheme in SCHEMES.items() if scheme.waits} == {"joint", "lb-bsp", "lb-bsp-federated"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("fair", BatchJob((1,))), "unknown batching 'fair': choose one of off, static"),
        (lambda: BatchJob((1, 2), most=(3,)), "1 x most for 2 workers"),
        (lambda: build("off", BatchJob((4, 4), most=(3, 3))), "does not fit"),
        (lambda: Observation(0, 1.0), "at least 1 sample"),
        (lambda: Observation(1, 0.0), "positive time"),
        (lambda: Observation(1, 1.0, cpu_share=80.0), "CPU share 80"),
        (lambda: Observation(1, 1.0, memory_share=-1.0), "memory share -1"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
