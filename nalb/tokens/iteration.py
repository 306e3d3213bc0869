"""The tokens of one iteration, each made when the tokens that it needs are computed (token generator of Geng et al., III-A, III-B).

Forward, a token of the next sub-model takes a group of w_(i+1) / w_i computed tokens. F1 tokens have a home, the worker to whose
bucket they are dealt. Groups form among tokens of one home, in the order in which they are computed. The last tokens of each home,
too few for a group, form groups across homes. Backward, each token mirrors one forward token: a computed FB_M makes the B(M-1) of
every token that it took, and so on.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nalb.tokens.shape import Shape

ACROSS = -1  # the home of tokens whose inputs have several homes


class TokenId(NamedTuple):
    """A token's name. number: counts a level's tokens in the order of their making; B_i has the number of the F_i it mirrors."""

    iteration: int
    level: int
    number: int


class Token(NamedTuple):
    """The computation of one sub-model for some samples, forward, backward or both.

    chunks: the F1 tokens whose samples it covers, in the order of its batch. home: a rank, or ACROSS. inputs: the tokens whose
    results it takes. For a forward token these are the tokens that it covers, in the order of its batch. For B_i it is the token
    whose input gradient it takes, which covers further samples where its weight is larger. mirrors: for B_i, the F_i whose
    computation it goes back through.
    """

    id: TokenId
    chunks: tuple[int, ...]
    home: int
    inputs: tuple[TokenId, ...]
    mirrors: TokenId | None = None

    @property
    def needs(self) -> tuple[TokenId, ...]:
        """All tokens that the token depends on: D of Geng et al., Eq. 1."""
        return self.inputs if self.mirrors is None else (self.mirrors, *self.inputs)


class Iteration:
    """Makes the tokens of one iteration."""

    def __init__(self, number: int, shape: Shape, home_of_chunk: Sequence[int]):
        self.number, self._shape = number, shape
        self._home_of_chunk = home_of_chunk
        self._forward: list[list[Token]] = [[] for _ in range(shape.sub_models)]  # by sub-model and number
        self._pending: dict[tuple[int, int], list[Token]] = {}  # by level and home: computed tokens in no group yet
        self._grouped: dict[tuple[int, int], int] = {}  # by level and home: groups made
        self._own_groups = [self._count_homes(home_of_chunk)]  # per level: number of tokens by home
        for low, high in zip(shape.weights, shape.weights[1:], strict=False):
            self._own_groups.append({home: n // (high // low) for home, n in self._own_groups[-1].items()})
        self._left = list(shape.counts)  # per sub-model: tokens that have not gone back

    @staticmethod
    def _count_homes(home_of_chunk: Sequence[int]) -> dict[int, int]:
        return {home: home_of_chunk.count(home) for home in set(home_of_chunk)}

    def first(self) -> list[Token]:
        """Make all F1 tokens."""
        return [self._make(0, (chunk,), home, ()) for chunk, home in enumerate(self._home_of_chunk)]

    def complete(self, token: Token) -> list[Token]:
        """Note that a token is computed; returns the tokens that can be computed now."""
        level = token.id.level
        if level < self._shape.head:
            return self._group(token)
        sub_model = self._shape.sub_model(level)
        self._left[sub_model] -= 1
        mirrored = token if token.mirrors is None else self.token(token.mirrors)
        return [self._back(self.token(one), token) for one in mirrored.inputs]

    def token(self, forward: TokenId) -> Token:
        """The forward token of this name, which was made before."""
        return self._forward[forward.level][forward.number]

    def is_back(self, sub_model: int) -> bool:
        """Whether all gradients of the sub-model are computed."""
        return self._left[sub_model] == 0

    @property
    def is_complete(self) -> bool:
        """Whether all gradients of the iteration are computed."""
        return not any(self._left)

    def _make(self, level: int, chunks: tuple[int, ...], home: int, inputs: tuple[TokenId, ...]) -> Token:
        made = self._forward[level]
        made.append(Token(TokenId(self.number, level, len(made)), chunks, home, inputs))
        return made[-1]

    def _back(self, mirrored: Token, after: Token) -> Token:
        id_ = TokenId(self.number, 2 * self._shape.head - mirrored.id.level, mirrored.id.number)
        return Token(id_, mirrored.chunks, mirrored.home, (after.id,), mirrored.id)

    def _group(self, token: Token) -> list[Token]:
        """Add a token to its group; returns the token of the next sub-model if the group is full, else none."""
        level, home = token.id.level, token.home
        size = self._shape.weights[level + 1] // self._shape.weights[level]
        if home != ACROSS and self._grouped.get((level, home), 0) == self._own_groups[level + 1].get(home, 0):
            home = ACROSS
        waiting = self._pending.setdefault((level, home), [])
        waiting.append(token)
        own = sum(self._own_groups[level + 1].values())
        made = self._grouped.get((level, home), 0)
        if home == ACROSS:
            across = self._shape.counts[level] - own * size  # tokens that go into groups across homes
            size = min(size, across - made * size)
        if len(waiting) < size:
            return []
        self._pending[level, home] = []
        self._grouped[level, home] = made + 1
        chunks = tuple(chunk for one in waiting for chunk in one.chunks)
        return [self._make(level + 1, chunks, home, tuple(one.id for one in waiting))]
