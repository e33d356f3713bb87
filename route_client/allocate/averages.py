"""Even shares: neighbouring queues (AVG, the default) or in turn (AVG_BY_CIRCLE)."""

from __future__ import annotations

from collections.abc import Sequence

from route_client.allocate.strategy import is_member
from route_client.routes.route import MessageQueue


class AllocateAveragely:
    """Each client gets neighbouring queues; if they do not divide evenly, the first clients get one more."""

    name = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """As in AllocateStrategy."""
        if not is_member(group, client_id, queues, client_ids):
            return []
        index = client_ids.index(client_id)
        share, more = divmod(len(queues), len(client_ids))
        start = index * share + min(index, more)
        return list(queues[start : start + share + (1 if index < more else 0)])


class AllocateAveragelyByCircle:
    """The queues are dealt out one by one."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """As in AllocateStrategy."""
        if not is_member(group, client_id, queues, client_ids):
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])
