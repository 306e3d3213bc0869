"""Says which worker may compute which sub-model. Fela and the ways compared with it are records of one kind (Geng et al., VI)."""

from collections.abc import Sequence
from dataclasses import dataclass

from nalb.errors import InputError
from nalb.tokens.shape import Shape

FELA, FELA_BY_PAPER = "fela", "fela-paper"  # with knowledge of network and workers, or by the paper's rules alone
FELAS = (FELA, FELA_BY_PAPER)
MODEL_PARALLEL = "mp"
PARALLELS = (*FELAS, "dp", "hp", MODEL_PARALLEL)  # names of the ways to train


@dataclass(frozen=True)
class Policy:
    """Which worker may compute which sub-model, and in which order.

    eligible: per sub-model, the ascending ranks of the workers that may compute it; F1 tokens are dealt to those of the first one.
    helps: whether a worker without tokens of its own takes others'. first: a sub-model whose tokens go before all others; None:
    there is none. overlaps: whether a sub-model's gradients are summed as soon as they are computed; False: after the iteration's
    last token. depth_first, by_locality: whether tokens of higher levels go first, and among these the tokens of which the worker
    holds the most inputs (Geng et al., III-D); with neither the oldest goes first. own_buckets: whether each worker has a bucket
    of its own (III-E); False: all take from one. is_apart: as of `fela`.
    """

    name: str
    eligible: tuple[tuple[int, ...], ...]
    helps: bool = True
    first: int | None = None
    overlaps: bool = True
    depth_first: bool = True
    by_locality: bool = True
    own_buckets: bool = True
    is_apart: bool = False


def fela(
    workers: int,
    sub_models: int,
    subset: Sequence[int] | None = None,
    conditional: int | None = None,
    is_apart: bool = False,
) -> Policy:
    """Fela's policy: all workers may compute all sub-models, except the conditional one, which only `subset` computes.

    subset: ranks; None: all. conditional: a sub-model, counted from 0; None: the last one. is_apart: whether the subset computes
    nothing else, as in hybrid parallelism. Raises InputError.
    """
    everyone = tuple(range(workers))
    members = everyone if subset is None else tuple(sorted(set(subset)))
    which = sub_models - 1 if conditional is None else conditional
    if not members or not set(members) <= set(everyone):
        raise InputError(f"subset {list(members)}: give ranks from 0 to {workers - 1}, at least one")
    if not 0 <= which < sub_models:
        raise InputError(f"conditional sub-model {which + 1}: there are {sub_models}")
    others = tuple(rank for rank in everyone if rank not in members) if is_apart else everyone
    if not others or (is_apart and sub_models == 1):
        raise InputError("a subset that is apart leaves the other sub-models to the others: there must be some of both")
    eligible = tuple(members if one == which else others for one in range(sub_models))
    return Policy(FELA, eligible, first=None if members == everyone else which, is_apart=is_apart)


def fela_shape(policy: Policy, workers: int, total: int, weights: tuple[int, ...], threshold: int) -> Shape:
    """The shape of iterations under a policy of `fela`. total: samples. threshold: as of Shape.of."""
    if policy.is_apart:
        return Shape.dealt(total, len(policy.eligible[0]), weights, threshold)
    return Shape.of(total, workers, weights, threshold)


def data_parallel(workers: int, total: int, sub_models: int = 1) -> tuple[Policy, Shape]:
    """Each worker computes the whole model for total / workers samples; gradients are summed after the backward pass."""
    shape = Shape(total, workers, (1,) * sub_models)
    return Policy("dp", (tuple(range(workers)),) * sub_models, helps=False, overlaps=False), shape


def hybrid_parallel(workers: int, total: int, sub_models: int) -> tuple[Policy, Shape]:
    """The last worker computes the last sub-model for all, the others compute the rest (Stanza, Wu et al., 2018)."""
    if workers < 2 or sub_models < 2:
        raise InputError(
            f"hybrid parallelism of {sub_models} sub-models on {workers} workers: it needs two of each at least"
        )
    front = tuple(range(workers - 1))
    shape = Shape(total, workers - 1, (1,) * (sub_models - 1) + (workers - 1,))
    eligible = (front,) * (sub_models - 1) + ((workers - 1,),)
    return Policy("hp", eligible, helps=False, overlaps=False), shape


def model_parallel(workers: int, total: int, sub_models: int, micro_batches: int) -> tuple[Policy, Shape]:
    """Each worker computes one stage; micro-batches go through one after the other, and a flush ends the iteration (GPipe, Huang
    et al., 2018). Neighbouring sub-models make up a stage where there are more of them than workers."""
    shape = Shape(total, micro_batches, (1,) * sub_models)
    stages = min(workers, sub_models)
    eligible = tuple((one * stages // sub_models,) for one in range(sub_models))
    return Policy(MODEL_PARALLEL, eligible, helps=False, overlaps=False), shape


def conflict(parallel: str, has_weights: bool, has_subset: bool, staleness: int, is_apart: bool = False) -> str | None:
    """Why these options contradict each other; None where they do not."""
    if parallel not in FELAS and (has_weights or has_subset):
        return f"weights and subset are fela's alone: leave them out with {parallel}"
    if has_subset and not has_weights:
        return "a subset needs weights: give both, or none and they are tuned while training"
    if is_apart and not has_subset:
        return "only a subset can be apart: give its size as well"
    if parallel in FELAS and staleness and not has_weights:
        return "with staleness iterations overlap, so nothing can be tuned between them: give weights"
    return None


def configuration(
    parallel: str,
    workers: int,
    sub_models: int,
    total: int,
    threshold: int,
    weights: Sequence[int] | None = None,
    subset: int | None = None,
    is_apart: bool = False,
) -> tuple[Policy, Shape]:
    """The policy and shape of a job that asks for one of PARALLELS.

    weights, subset: for fela only. weights: None: all are 1. subset: how many workers, of the lowest ranks, compute the last
    sub-model; None: all. is_apart: as of `fela`. mp has as many micro-batches as Fela has F1 tokens. Raises InputError.
    """
    if parallel == "dp":
        return data_parallel(workers, total, sub_models)
    if parallel == "hp":
        return hybrid_parallel(workers, total, sub_models)
    ones = (1,) * sub_models
    if parallel == MODEL_PARALLEL:
        return model_parallel(workers, total, sub_models, Shape.of(total, workers, ones, threshold).chunks)
    if weights is not None and len(weights) != sub_models:
        raise InputError(f"{len(weights)} weights for {sub_models} sub-models: give one for each")
    if subset is not None and not 1 <= subset <= workers:
        raise InputError(f"a subset of {subset} among {workers} workers: choose 1 to {workers}")
    policy = fela(workers, sub_models, None if subset is None else range(subset), None, is_apart)
    return policy, fela_shape(policy, workers, total, tuple(weights or ones), threshold)
