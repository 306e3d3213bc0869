"""The buckets where tokens wait, and the choice of the token that a worker gets (token distributor of Geng et al., III-D to III-F).

Each worker has a bucket of its own and takes tokens from it. When it finds none there, it helps the owner of another bucket: the
one with fewest helpers, then the one whose samples have most levels left, then the one of lowest rank. No worker helps with a token
for which its owner waits (server.py).
"""

from collections import Counter
from collections.abc import Callable, Collection, Set
from heapq import nsmallest

from nalb.tokens.iteration import Token, TokenId
from nalb.tokens.policies import Policy
from nalb.tokens.shape import Shape

SHARED = 0  # owner of the only bucket, where workers have none of their own
ADVISED_MOST = 8  # owners that one request asks for advice about: each takes up to 0.1 ms

Cost = Callable[[int, Token], float]  # (worker, token) -> cost of taking the token; lower is better
# (worker, owner of the bucket, its tokens that the worker may compute, at least one) -> the one to help with, if any
Help = Callable[[int, int, Collection[Token]], Token | None]


class Buckets:
    """All workers' buckets.

    holder: the worker that has a token's output; it must have every token that tokens in the buckets need. cost: orders tokens of a
    level; None: 1 - Eq. 1 of Geng et al. help: chooses a token to help with; None: chosen like a token of one's own bucket.
    """

    def __init__(
        self,
        shape: Shape,
        policy: Policy,
        workers: int,
        holder: dict[TokenId, int],
        cost: Cost | None = None,
        help: Help | None = None,
    ):
        self._shape, self._policy, self._holder = shape, policy, holder
        self._cost, self._help = cost or self._missing, help
        self._waiting: list[dict[TokenId, Token]] = [{} for _ in range(workers)]  # by owner; oldest first
        self._helped: dict[TokenId, int] = {}  # token that a helper computes -> its owner
        self._helpers: Counter[int] = Counter()  # by owner
        self._left: Counter[int] = Counter()  # by owner: samples x levels of its waiting tokens
        self._owners: set[int] = set()  # owners whose buckets have tokens
        self._of_sub_model = [0] * shape.sub_models  # tokens of each sub-model in all buckets
        self._may = [[one for one, ranks in enumerate(policy.eligible) if rank in ranks] for rank in range(workers)]

    def put(self, token: Token) -> int:
        """Put a token into a bucket, and return the bucket's owner.

        The owner of an F1 token is its home. Other tokens go to an eligible worker, if possible the one with most of their inputs.
        """
        owner = self._owner(token)
        self._waiting[owner][token.id] = token
        self._left[owner] += self._work(token)
        self._owners.add(owner)
        self._of_sub_model[self._shape.sub_model(token.id.level)] += 1
        return owner

    def take_own(self, worker: int, until: int) -> Token | None:
        """Take the worker's next token from its own bucket; None where none is of an iteration up to `until`."""
        bucket = worker if self._policy.own_buckets else SHARED
        may = self._may_take(worker, bucket, until)
        return self._remove(min(may, key=lambda one: self._rank(worker, one)), bucket) if may else None

    def take_absent(self, worker: int, until: int, absent: Collection[int]) -> tuple[Token, int] | None:
        """Take a token of an absent owner, if the worker's own bucket has only tokens of the last level. Returns it and its owner.

        No token waits for those of the last level. Without this rule the samples of a sleeping worker would begin their way only
        after all others have ended theirs.
        """
        last = self._shape.levels - 1
        if not self._policy.helps or any(one.id.level < last for one in self._waiting[worker].values()):
            return None
        for owner in sorted(absent, key=self._who_needs_help):
            may = [one for one in self._may_take(worker, owner, until) if one.id.level < last]
            if owner != worker and may:
                return self._lend(min(may, key=lambda one: self._rank(worker, one)), owner)
        return None

    def take_others(self, worker: int, until: int) -> tuple[Token, int] | None:
        """Take the worker's next token from another bucket; returns it and its owner, or None. The worker's own bucket has none."""
        helps = self._policy.helps and self._policy.own_buckets
        if not helps or not any(self._of_sub_model[one] for one in self._may[worker]):
            return None
        others = [owner for owner in self._owners if owner != worker]
        if self._help is not None:
            order = nsmallest(ADVISED_MOST, others, key=self._who_needs_help)
        else:
            order = sorted(others, key=self._who_needs_help)
        for owner in order:
            if may := self._may_take(worker, owner, until):
                token = (
                    self._help(worker, owner, may) if self._help else min(may, key=lambda one: self._rank(worker, one))
                )
                if token:
                    return self._lend(token, owner)
        return None

    def complete(self, token: Token) -> None:
        """Note that a token that was taken is computed."""
        owner = self._helped.pop(token.id, None)
        if owner is not None:
            self._helpers[owner] -= 1

    @property
    def owners(self) -> Set[int]:
        """The owners whose buckets have tokens."""
        return self._owners

    def of(self, owner: int) -> Collection[Token]:
        """The tokens in a worker's bucket, oldest first."""
        return self._waiting[owner].values()

    def __len__(self) -> int:
        return sum(self._of_sub_model)

    def _owner(self, token: Token) -> int:
        eligible = self._policy.eligible[self._shape.sub_model(token.id.level)]
        if not self._policy.own_buckets:
            return SHARED
        if token.mirrors is not None:
            return self._holder[token.mirrors]
        if not token.inputs:
            return token.home
        held = Counter(self._holder[one] for one in token.inputs)
        most = min(held, key=lambda rank: (-held[rank], rank))
        return most if most in eligible else eligible[most % len(eligible)]

    def _work(self, token: Token) -> int:
        """The token's samples times the levels that they have left, this one included."""
        return self._shape.samples(token.chunks) * (self._shape.levels - token.id.level)

    def _may_take(self, worker: int, owner: int, until: int) -> list[Token]:
        eligible, sub_model = self._policy.eligible, self._shape.sub_model
        waiting = self._waiting[owner].values()
        return [one for one in waiting if one.id.iteration <= until and worker in eligible[sub_model(one.id.level)]]

    def _rank(self, worker: int, token: Token) -> tuple[int, bool, int, float]:
        """A token's rank for a worker: the lowest goes first, and the oldest of equal ones."""
        policy = self._policy
        first = policy.first is not None and self._shape.sub_model(token.id.level) == policy.first
        level = -token.id.level if policy.depth_first else 0
        if self._help is not None and token.id.level == self._shape.levels - 1:
            level = 1  # no token waits for it: it can be computed while other sub-models are summed
        return token.id.iteration, not first, level, self._cost(worker, token) if policy.by_locality else 0.0

    def _missing(self, worker: int, token: Token) -> float:
        """The part of a token's inputs that a worker does not hold: 1 - |H and D| / |D| (Geng et al., Eq. 1)."""
        needs = token.needs
        return sum(self._holder[one] != worker for one in needs) / len(needs) if needs else 1.0

    def _who_needs_help(self, owner: int) -> tuple[int, int, int]:
        """An owner's need of help: the lowest is helped first, by fewest helpers, slowest progress, lowest rank."""
        return self._helpers[owner], -self._left[owner], owner

    def _lend(self, token: Token, owner: int) -> tuple[Token, int]:
        """Give a token to a helper; returns it and its owner."""
        self._helped[token.id] = owner
        self._helpers[owner] += 1
        return self._remove(token, owner), owner

    def _remove(self, token: Token, owner: int) -> Token:
        del self._waiting[owner][token.id]
        self._left[owner] -= self._work(token)
        self._of_sub_model[self._shape.sub_model(token.id.level)] -= 1
        if not self._waiting[owner]:
            self._owners.remove(owner)
        return token
