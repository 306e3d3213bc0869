"""The messages of tokens (nalb/tokens), which have a count of iterations of their own.

W -> C  JoinTokens
C -> W  TokenPeers         every worker has joined
W -> C  TokenRequest(k)    once per token and once per iteration; the worker then waits for TokenWork or NextIteration
C -> W  TokenShape(k)      before NextIteration(k-1) and any token of k, where it is not that of k-1
C -> W  TokenWork(k)       answers the request
C -> W  SendPart(k)        to the worker that holds what the token needs
C -> W  SumGradients(k)    to every worker, in the same order
C -> W  NextIteration(k)   answers the request
"""

from typing import Annotated

from msgspec import Meta

from nalb.protocol.wire import BatchSize, Bytes, Count, Identity, Index, Last, Message, Seconds, Share
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Fetch
from nalb.tokens.shape import SUB_MODELS_MOST


class JoinTokens(Message, frozen=True):
    """The worker computes tokens; all workers must say so with the same numbers."""

    address: Identity  # tcp://host:port, where other workers' couriers reach this one's
    sub_models: Annotated[int, Meta(ge=1, le=SUB_MODELS_MOST)]
    total: BatchSize  # samples of an iteration, over all workers
    threshold: BatchSize  # the smallest batch at which the first sub-model computes at full speed


class TokenRequest(Message, frozen=True):
    """A worker in `iteration` has computed `done` and asks for its next token."""

    iteration: Count
    done: TokenId | None = None
    drains: bool = False  # its training ends: it stays until the iteration is complete
    compute_s: Seconds = 0.0  # of `done`, from its inputs to its output
    fetch_s: Seconds = 0.0  # from the token until its inputs were there
    fetched_bytes: Bytes = 0


class TokenPeers(Message, frozen=True):
    """All workers have joined: these are the addresses of their couriers."""

    addresses: list[Identity]  # by rank


class TokenShape(Message, frozen=True):
    """What iterations consist of, from `iteration` on (nalb/tokens/shape.py, policies.py)."""

    iteration: Count
    chunks: Index
    weights: list[Index]  # by sub-model
    eligible: list[list[Index]]  # by sub-model: ranks that may compute it


class TokenWork(Message, frozen=True):
    """Compute this token, once its fetches have come."""

    token: TokenId
    chunks: list[Index]  # whose samples it covers, in the order of its batch
    inputs: list[TokenId]
    mirrors: TokenId | None
    fetches: list[Fetch]


class SendPart(Message, frozen=True):
    """Send what `fetch` says to the courier of `worker`, which computes `wanted_by`."""

    fetch: Fetch
    worker: Index
    wanted_by: TokenId
    chunks: list[Index]  # of wanted_by: of a gradient that covers more, only these samples' part is wanted


class SumGradients(Message, frozen=True):
    """All gradients of a sub-model are there: sum them over `workers`, and take the step."""

    iteration: Count
    sub_model: Index
    workers: list[Index]
    shares: list[Share]  # parts of the elements that each of `workers` adds up; 1 in all


class NextIteration(Message, frozen=True):
    """The worker's iteration ends. Nobody needs what iterations up to `complete` left any more."""

    iteration: Count
    complete: Last


FROM_PROCESSES = (JoinTokens, TokenRequest)
TO_PROCESSES = (TokenPeers, TokenShape, TokenWork, SendPart, SumGradients, NextIteration)
