"""A fixed list of queues (CONFIG)."""

from __future__ import annotations

from collections.abc import Sequence

from route_client.routes.route import MessageQueue


class AllocateByConfig:
    """The queues that the client was configured with, whatever other clients there are."""

    name = "CONFIG"

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        """Takes the client's queues."""
        self._queues = tuple(queues)

    def allocate(
        self,
        group: str,  # noqa: ARG002 - the strategies are called alike
        client_id: str,  # noqa: ARG002
        queues: Sequence[MessageQueue],  # noqa: ARG002
        client_ids: Sequence[str],  # noqa: ARG002
    ) -> list[MessageQueue]:
        """The fixed list; nothing is checked, as in RocketMQ."""
        return list(self._queues)
