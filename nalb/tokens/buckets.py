"""Where tokens wait, and which one a worker gets (the token distributor of Geng et al., III-D to III-F).

Each worker has a bucket of its own. A worker takes from it; once it finds nothing there it helps another: the bucket with fewest
helpers, then the one whose samples have most levels before them, then the lowest rank. Nobody helps with a token whose owner waits
for it (server.py).
"""

from collections import Counter
from collections.abc import Callable, Collection, Set
from heapq import nsmallest

from nalb.tokens.iteration import Token, TokenId
from nalb.tokens.policies import Policy
from nalb.tokens.shape import Shape

SHARED = 0  # the one bucket, where workers have none of their own
ADVISED_MOST = 8  # owners that advice is asked about for one request: it takes up to 0.1 ms for each

Cost = Callable[[int, Token], float]  # (worker, token) -> what taking it costs, lower is better
# (worker, owner of the bucket, its tokens that the worker may compute, at least one) -> which to help with, if any
Help = Callable[[int, int, Collection[Token]], Token | None]


class Buckets:
    """holder: who has a token's output; it must know all tokens that those in the buckets need.

    cost: None: 1 - Eq. 1 of Geng et al. help: None: as with a token of one's own.
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
        self._waiting: list[dict[TokenId, Token]] = [{} for _ in range(workers)]  # by owner; in order of their making
        self._helped: dict[TokenId, int] = {}  # tokens that helpers compute -> whose
        self._helpers: Counter[int] = Counter()
        self._left: Counter[int] = Counter()  # by owner: samples x levels that wait
        self._owners: set[int] = set()  # whose buckets have tokens
        self._of_sub_model = [0] * shape.sub_models  # tokens in all buckets
        self._may = [[one for one, ranks in enumerate(policy.eligible) if rank in ranks] for rank in range(workers)]

    def put(self, token: Token) -> int:
        """Into the bucket of the worker that holds most of its inputs and may compute it; who that is."""
        owner = self._owner(token)
        self._waiting[owner][token.id] = token
        self._left[owner] += self._work(token)
        self._owners.add(owner)
        self._of_sub_model[self._shape.sub_model(token.id.level)] += 1
        return owner

    def take_own(self, worker: int, until: int) -> Token | None:
        """The worker's next token of its own bucket, if there is one for it of an iteration up to `until`."""
        bucket = worker if self._policy.own_buckets else SHARED
        may = self._may_take(worker, bucket, until)
        return self._remove(min(may, key=lambda one: self._rank(worker, one)), bucket) if may else None

    def take_absent(self, worker: int, until: int, absent: Collection[int]) -> tuple[Token, int] | None:
        """A token of an absent owner, where all that the worker has left itself are last levels, for which no other token waits.

        Else the samples of a worker that sleeps would begin their way once all others have ended theirs.
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
        """The worker's next token of others' buckets and whose it was in, if there is one for it; its own has none."""
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
        """A token that was taken is computed."""
        owner = self._helped.pop(token.id, None)
        if owner is not None:
            self._helpers[owner] -= 1

    @property
    def owners(self) -> Set[int]:
        """Whose buckets have tokens."""
        return self._owners

    def of(self, owner: int) -> Collection[Token]:
        """What waits in a worker's bucket, in order of its making."""
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
        """Samples times the levels that they have before them, this one included."""
        return self._shape.samples(token.chunks) * (self._shape.levels - token.id.level)

    def _may_take(self, worker: int, owner: int, until: int) -> list[Token]:
        eligible, sub_model = self._policy.eligible, self._shape.sub_model
        waiting = self._waiting[owner].values()
        return [one for one in waiting if one.id.iteration <= until and worker in eligible[sub_model(one.id.level)]]

    def _rank(self, worker: int, token: Token) -> tuple[int, bool, int, float]:
        """Lower goes first, of equal ones the oldest."""
        policy = self._policy
        first = policy.first is not None and self._shape.sub_model(token.id.level) == policy.first
        level = -token.id.level if policy.depth_first else 0
        if self._help is not None and token.id.level == self._shape.levels - 1:
            level = 1  # nothing waits for it: it can be done while all else is summed
        return token.id.iteration, not first, level, self._cost(worker, token) if policy.by_locality else 0.0

    def _missing(self, worker: int, token: Token) -> float:
        """1 - |H and D| / |D| (Geng et al., Eq. 1)."""
        needs = token.needs
        return sum(self._holder[one] != worker for one in needs) / len(needs) if needs else 1.0

    def _who_needs_help(self, owner: int) -> tuple[int, int, int]:
        """Lower is helped first: fewest helpers, slowest progress, lowest rank."""
        return self._helpers[owner], -self._left[owner], owner

    def _lend(self, token: Token, owner: int) -> tuple[Token, int]:
        """To a helper."""
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
