"""The base of all allocation strategies (RocketMQ: AbstractAllocateMessageQueueStrategy)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from route_client.errors import AllocationError
from route_client.routes.route import MessageQueue

_log = logging.getLogger(__name__)


class AllocateStrategy(Protocol):
    """Shares the queues of a topic among the clients of a consumer group.

    Every client computes its own part; the parts fit together if all of them see the same queues and clients, sorted.
    """

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of one client.

        Args:
            group: Name of the consumer group, for the log.
            client_id: The client.
            queues: All queues of the topic, sorted.
            client_ids: All clients of the group, sorted.

        Returns:
            Its queues; none if the client is not one of the group's.

        Raises:
            AllocationError: The client id is empty, or there are no queues or no clients.
        """


def is_member(group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> bool:
    """The check that comes first: whether the client is one of the group's.

    Raises:
        AllocationError: As in ``AllocateStrategy.allocate``.
    """
    for what, value in (("client_id", client_id), ("queues", queues), ("client_ids", client_ids)):
        if not value:
            raise AllocationError(f"{what} is empty")
    if client_id in client_ids:
        return True
    _log.warning("client %s of group %s is not among the group's clients: it gets no queues", client_id, group)
    return False
