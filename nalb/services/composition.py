"""The one place that knows all services: it makes a job's coordinator, and the decoders of what its two ends say."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from nalb.batching.speed import Predictor
from nalb.feedback.routing import Routing
from nalb.measurement.estimators import ESTIMATORS, Estimator
from nalb.protocol import wire
from nalb.protocol.coordinator import Coordinator
from nalb.protocol.members import Members
from nalb.protocol.observers import Observers
from nalb.protocol.service import Service
from nalb.schemes import SCHEMES, Scheme
from nalb.services.batching.service import Batching
from nalb.services.exchange.links import Links
from nalb.services.exchange.planes import AGENTS, Plane
from nalb.services.exchange.service import Exchange
from nalb.services.tokens.service import Tokens
from nalb.settings import Settings

SERVICES: tuple[type[Service], ...] = (Exchange, Batching, Tokens)


def import_ahead() -> None:
    """Import what services import where they first need it, while processes still come.

    A first plan with caps of pairs needs scipy's solver, whose import takes 0.4 s of a core. On an overloaded machine that is
    longer than others wait for a sign of life.
    """
    with suppress(Exception):  # the plan that needs it will say why
        import nalb.planning.pair_caps  # noqa: F401


def services_of(
    settings: Settings,
    members: Members,
    observers: Observers,
    predictor: Callable[[int], Predictor] | None = None,
    schemes: Mapping[str, Scheme] = SCHEMES,
    estimators: Mapping[str, Callable[[int], Estimator]] = ESTIMATORS,
    new_routing: Callable[[], Routing] = Routing,
    plane: Plane = AGENTS,
) -> list[Service]:
    """The services of a job. Where MXNet runs alone it has no exchange. The others turn workers away that the job has no use for.

    predictor: see BatchSizer. The other arguments are those of Exchange.
    """
    links = Links(members)
    tokens = Tokens(settings, members, links.rates, observers.is_recorded)
    batching = Batching(settings, members, links.knowledge, predictor)
    if settings.is_stock:
        return [tokens, batching]
    check_training = [batching.joining.check_training, tokens.joining.check_training]
    shares = batching.plan_shares
    exchange = Exchange(
        settings, members, observers, links, shares, check_training, schemes, estimators, new_routing, plane
    )
    return [tokens, batching, exchange]


def new_coordinator(
    settings: Settings,
    now_s: float,
    predictor: Callable[[int], Predictor] | None = None,
    schemes: Mapping[str, Scheme] = SCHEMES,
    estimators: Mapping[str, Callable[[int], Estimator]] = ESTIMATORS,
    new_routing: Callable[[], Routing] = Routing,
    plane: Plane = AGENTS,
    job: str = "",
) -> Coordinator:
    """The coordinator of a job with all its services. job: a name that no other job has. The others are those of services_of."""

    def compose(members: Members, observers: Observers) -> list[Service]:
        return services_of(settings, members, observers, predictor, schemes, estimators, new_routing, plane)

    return Coordinator(settings, now_s, compose, job)


def decoders(services: Sequence[type[Service]]) -> tuple[wire.Decoder, wire.Decoder]:
    """The decoders of the coordinator and of its clients, in jobs that may have these services."""
    taken = {kind: None for service in services for kind in service.takes}
    sent = [kind for service in services for kind in service.sends]
    to_coordinator = dict.fromkeys((*wire.FROM_PROCESSES, *wire.FROM_OBSERVERS)) | taken
    return wire.Decoder([*to_coordinator]), wire.Decoder([*wire.TO_PROCESSES, *wire.TO_OBSERVERS, *sent])


_at_coordinator, _at_client = decoders(SERVICES)
decode_at_coordinator = _at_coordinator.decode


def decode_at_client(frame: bytes) -> wire.Message:
    """The message in a frame from the coordinator. Raises PeerError."""
    return _at_client.decode(frame, "the coordinator")
