"""The answers of several name servers about one topic, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError
from route_client.cache import Answer
from route_client.route import GroupKey, TopicRoute

Member = tuple[GroupKey, int, str]
"""Group, id and address of a broker."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The answers of all name servers about a topic, and where they differ. Revisions and epochs are not compared."""

    topic: str
    answers: Mapping[Endpoint, Answer]
    """Those that answered, also that there is no such topic."""
    errors: Mapping[Endpoint, RichError]
    """Those that did not."""

    @property
    def agree(self) -> bool:
        """Whether all that answered say the same, apart from which brokers are unconfirmed."""
        return len({_comparable(answer.route) for answer in self.answers.values()}) <= 1

    @property
    def without_topic(self) -> tuple[Endpoint, ...]:
        """Name servers that have no such topic."""
        return tuple(endpoint for endpoint, answer in self.answers.items() if answer.route is None)

    @property
    def partial_brokers(self) -> dict[Member, tuple[Endpoint, ...]]:
        """Brokers that some name servers have and some do not, with those that have them."""
        having: dict[Member, list[Endpoint]] = {}
        for endpoint, answer in self.answers.items():
            for member in answer.route.brokers if answer.route else ():
                having.setdefault(member, []).append(endpoint)
        return {member: tuple(who) for member, who in having.items() if len(who) < len(self.answers)}


def _comparable(route: TopicRoute | None) -> TopicRoute | None:
    if route is None:
        return None
    return replace(route, broker_datas=tuple(replace(group, unconfirmed_broker_ids=()) for group in route.broker_datas))
