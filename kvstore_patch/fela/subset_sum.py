"""Sums arrays over some of the workers, without servers: each member adds up one share and sends its sum to the others."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays
from nalb.services.tokens import messages as m
from nalb.transport.courier import Courier
from nalb.transport.pieces import SumPhase, SumPiece


def add_up_among(courier: Courier, rank: int, order: m.SumGradients, arrays: Sequence[NDArray]) -> None:
    """Sum `arrays` in place over the order's workers, cut by the order's shares. All workers get the same bits.

    rank: this worker's, one of the order's workers.
    """
    for dtype in sorted({np.dtype(array.dtype).name for array in arrays}):
        chosen = [array for array in arrays if np.dtype(array.dtype).name == dtype]
        mine = np.concatenate([array.asnumpy().reshape(-1) for array in chosen])
        scatter = SumPiece(order.iteration, order.sub_model, SumPhase.SCATTER, dtype)
        gather = SumPiece(order.iteration, order.sub_model, SumPhase.GATHER, dtype)
        whole = _add_up(courier, rank, order, mine, scatter, gather)
        ends = np.cumsum([0, *(array.size for array in chosen)])
        for array, (start, end) in zip(chosen, pairwise(ends), strict=True):
            ndarrays.write(array, whole[start:end].reshape(array.shape))


def _add_up(
    courier: Courier, rank: int, order: m.SumGradients, mine: npt.NDArray[Any], scatter: SumPiece, gather: SumPiece
) -> npt.NDArray[Any]:
    members = order.workers
    ends = [0, *(round(mine.size * part) for part in np.cumsum(order.shares[:-1]).clip(0, 1)), mine.size]
    shares = {member: mine[start:end] for member, (start, end) in zip(members, pairwise(ends), strict=True)}
    others = [member for member in members if member != rank]
    for member in others:
        courier.send(member, scatter, partial(_same, shares[member]))
    parts = {rank: shares[rank]} | {member: courier.take_piece(scatter, member) for member in others}
    own = parts[members[0]].copy()
    for member in members[1:]:
        own += parts[member]
    for member in others:
        courier.send(member, gather, partial(_same, own))
    sums = {rank: own} | {member: courier.take_piece(gather, member) for member in others}
    return np.concatenate([sums[member] for member in members])


def _same(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array
