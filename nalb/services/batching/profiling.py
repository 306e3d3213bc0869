"""Measures a worker's computing time by batch size before training: LBB's profile (Yao et al., Algorithm 1)."""

from collections.abc import Callable

from nalb.batching.lbb import BatchProfile
from nalb.batching.schemes import SCHEMES
from nalb.services.batching.messages import JoinBatching
from nalb.services.batching.sizer import SET_UP
from nalb.settings import Settings

TIMED = 2  # timed runs of a size, after the runs that set it up
Points = list[tuple[int, float]]  # samples, seconds


def measure(run_s: Callable[[int], float], most: int, is_memory: Callable[[Exception], bool]) -> tuple[Points, int]:
    """Time batches of 4, 8, 16, ... samples up to `most` or up to what memory holds; return the points and the largest size.

    run_s: computes so many samples, and returns the seconds that it took. is_memory: whether its error says that memory is full;
    other errors are raised. Each size is computed SET_UP times untimed and then TIMED times, of which the fastest counts. Raises
    InputError where not one sample fits.
    """
    profile, points = BatchProfile(most), []
    while (size := profile.next_size) is not None:
        try:
            elapsed_s = best_time_s(run_s, size)
        except Exception as error:
            if not is_memory(error):
                raise
            profile.out_of_memory()
            continue
        profile.measured(elapsed_s)
        points.append((size, elapsed_s))
    return points, profile.limit


def joining(
    settings: Settings,
    rank: int,
    batch_size: int,
    total: int,
    most: int | None,
    power: float | None,
    timed: Callable[[int], tuple[Points, int]] | None,
) -> JoinBatching:
    """The message by which a worker joins, with a profile where the job's batch sizes follow from one.

    total: samples of all workers' first batches. timed: measures the worker up to so many samples; None: its script cannot.
    """
    points = None
    if timed is not None and settings.batching in SCHEMES and SCHEMES[settings.batching].profiles:
        told = settings.batch_maxima[rank] if settings.batch_maxima else None
        limits = (settings.batch_total or total, most, told)
        points, most = timed(min(limit for limit in limits if limit is not None))
    return JoinBatching(batch_size, most, points, power)


def best_time_s(run_s: Callable[[int], float], size: int) -> float:
    """Seconds of the fastest of TIMED runs, after SET_UP runs that do not count."""
    return min([run_s(size) for _ in range(SET_UP + TIMED)][SET_UP:])
