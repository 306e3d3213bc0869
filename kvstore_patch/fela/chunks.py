"""The arrays that computed tokens left on this worker, for later tokens of any worker (parameter chunks of Geng et al., III-A)."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.ndarray import NDArray

from nalb.errors import PeerError
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Part
from nalb.tokens.shape import Shape


@dataclass(frozen=True)
class _Kept:
    array: NDArray
    chunks: tuple[int, ...]  # the rows are the samples of these F1 tokens, in this order
    shape: Shape


class Chunks:
    """Arrays by token and part, kept until the token's iteration is complete on all workers. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[TokenId, Part], _Kept] = {}

    def keep(self, token: TokenId, part: Part, array: NDArray, chunks: Sequence[int], shape: Shape) -> None:
        """Keep an array whose rows are the samples of `chunks`, in this order."""
        with self._lock:
            self._kept[token, part] = _Kept(array, tuple(chunks), shape)

    def get(self, token: TokenId, part: Part, chunks: Sequence[int]) -> NDArray:
        """The rows of these chunks: all of an output or input, or a part of a gradient. Raises PeerError where it is not here."""
        kept, rows = self._rows(token, part, chunks)
        # slice_axis copies: most operations refuse a view of an array in oneDNN's layout (ndarrays.py)
        found = [mx.nd.slice_axis(kept, axis=0, begin=one.start, end=one.stop) for one in rows]
        return kept if not found else found[0] if len(found) == 1 else mx.nd.concat(*found, dim=0)

    def read(self, token: TokenId, part: Part, chunks: Sequence[int]) -> npt.NDArray[Any]:
        """As `get`, but for another worker: queues no operation, which would wait behind the computation under way."""
        kept, rows = self._rows(token, part, chunks)
        whole = kept.asnumpy()
        return np.concatenate([whole[one] for one in rows]) if rows else whole

    def _rows(self, token: TokenId, part: Part, chunks: Sequence[int]) -> tuple[NDArray, list[slice]]:
        """The kept array, and the slices of its rows that hold these chunks; no slices: all rows."""
        with self._lock:
            kept = self._kept.get((token, part))
        if kept is None:
            raise PeerError(
                f"is asked for the {part} of token {tuple(token)}, which it does not hold: please report this"
            )
        if part is not Part.GRADIENT or tuple(chunks) == kept.chunks:
            return kept.array, []
        start, rows = 0, {}
        for chunk in kept.chunks:
            end = start + len(kept.shape.samples_of(chunk))
            rows[chunk] = slice(start, end)
            start = end
        return kept.array, [rows[one] for one in chunks]

    def drop(self, token: TokenId) -> None:
        """Forget what this token left."""
        with self._lock:
            for part in Part:
                self._kept.pop((token, part), None)

    def free(self, complete: int) -> None:
        """Forget what the tokens of iterations up to `complete` left."""
        with self._lock:
            for key in [key for key in self._kept if key[0].iteration <= complete]:
                del self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)
