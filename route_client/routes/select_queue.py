"""The choice of the queue for the next message (RocketMQ: selectOneMessageQueue, MQFaultStrategy)."""

from __future__ import annotations

import itertools
import random

from route_client.errors import NoWritableQueueError
from route_client.routes.latency_fault import LatencyFaults
from route_client.routes.publish_info import PublishInfo
from route_client.routes.route import MessageQueue


class QueueSelector:
    """Takes the queues of a topic in turn, from a random one on.

    May be used from any thread; changes no shared list.
    """

    def __init__(self, rng: random.Random, faults: LatencyFaults | None = None) -> None:
        """Takes a source of randomness, and the faults to avoid, if that is on (RocketMQ: sendLatencyFaultEnable)."""
        self._index = itertools.count(rng.randrange(1 << 16))
        self._faults = faults

    def select_one_queue(self, info: PublishInfo, last_broker_name: str | None = None) -> MessageQueue:
        """The next queue.

        Args:
            info: The topic's queues.
            last_broker_name: For another try: the broker that the last one failed at. A queue of another broker is
                taken if there is one.

        Raises:
            NoWritableQueueError: There is no queue.
        """
        if not info.usable:
            raise NoWritableQueueError(f"topic {info.topic!r} has no writable queue on a group with a master")
        if self._faults is not None:
            return self._avoid_faults(info, self._faults)
        if last_broker_name is not None:
            for _ in info.queues:
                queue = self._next(info)
                if queue.broker_name != last_broker_name:
                    return queue
        return self._next(info)

    def _next(self, info: PublishInfo) -> MessageQueue:
        return info.queues[next(self._index) % len(info.queues)]

    def _avoid_faults(self, info: PublishInfo, faults: LatencyFaults) -> MessageQueue:
        """As in RocketMQ 4.9, where the broker of the last try is not looked at: its failure made it unavailable."""
        start, number = next(self._index), len(info.queues)
        for step in range(number):
            queue = info.queues[(start + step) % number]
            if faults.is_available(queue.broker_name):
                return queue
        picked = faults.pick_one_at_least({queue.broker_name for queue in info.queues})
        # Upstream writes the picked broker into the shared queue object that is next in turn, and so corrupts the list.
        of_picked = [queue for queue in info.queues if queue.broker_name == picked]
        return of_picked[start % len(of_picked)] if of_picked else self._next(info)
