"""What computed tokens left on this worker, for its own next tokens and for others' (parameter chunks of Geng et al., III-A)."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import mxnet as mx
from mxnet.ndarray import NDArray

from nalb.errors import PeerError
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Part
from nalb.tokens.shape import Shape


@dataclass(frozen=True)
class _Kept:
    array: NDArray
    chunks: tuple[int, ...]  # whose samples its rows are, in their order
    shape: Shape


class Chunks:
    """Arrays by token and part, from when the token is computed until its iteration is complete everywhere. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[TokenId, Part], _Kept] = {}

    def keep(self, token: TokenId, part: Part, array: NDArray, chunks: Sequence[int], shape: Shape) -> None:
        """The rows of `array` are the samples of `chunks`, in their order."""
        with self._lock:
            self._kept[token, part] = _Kept(array, tuple(chunks), shape)

    def get(self, token: TokenId, part: Part, chunks: Sequence[int]) -> NDArray:
        """The rows of these chunks: all of an output or input, often a part of a gradient. PeerError where it is not here."""
        with self._lock:
            kept = self._kept.get((token, part))
        if kept is None:
            raise PeerError(
                f"is asked for the {part} of token {tuple(token)}, which it does not hold: please report this"
            )
        if part is not Part.GRADIENT or tuple(chunks) == kept.chunks:
            return kept.array
        start, places = 0, {}
        for chunk in kept.chunks:
            end = start + len(kept.shape.samples_of(chunk))
            places[chunk] = (start, end)
            start = end
        # an operation of its own for each: a view of an array in oneDNN's layout is refused by others (ndarrays.py)
        rows = [mx.nd.slice_axis(kept.array, axis=0, begin=places[one][0], end=places[one][1]) for one in chunks]
        return rows[0] if len(rows) == 1 else mx.nd.concat(*rows, dim=0)

    def drop(self, token: TokenId) -> None:
        """Nobody needs what this token left any more."""
        with self._lock:
            for part in Part:
                self._kept.pop((token, part), None)

    def free(self, complete: int) -> None:
        """Nobody needs what iterations up to `complete` left any more."""
        with self._lock:
            for key in [key for key in self._kept if key[0].iteration <= complete]:
                del self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)
