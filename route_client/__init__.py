"""Routes for producers and consumers: watched, cached, and never lost to an empty answer.

``RouteClient`` is for threads, ``AioRouteClient`` for asyncio; ``route_client.allocate`` shares queues among consumers.
Begin reading in ``client``.
"""

from namesrv_common.client.channels import ClientFiles
from route_client.cache import Answer, Counters, FoundBroker, KnownRoute, Origin, Removal, RouteChange, Stale
from route_client.client import AioRouteClient, ClientStatus, RouteClient
from route_client.errors import (
    AllocationError,
    BadTopicNameError,
    ClientClosedError,
    EndpointListError,
    ForkedProcessError,
    MalformedOrderConfError,
    NoNamesrvAnsweredError,
    NoWritableQueueError,
    RequestRefusedError,
    RouteClientError,
    TooManyTopicsError,
    TopicNotFoundError,
)
from route_client.queues import PublishInfo, QueuePlace, place_of
from route_client.route import BrokerData, GroupKey, MessageQueue, QueueData, StaticMapping, TopicRoute
from route_client.settings import ClientSettings

__all__ = [
    "AioRouteClient",
    "AllocationError",
    "Answer",
    "BadTopicNameError",
    "BrokerData",
    "ClientClosedError",
    "ClientFiles",
    "ClientSettings",
    "ClientStatus",
    "Counters",
    "EndpointListError",
    "ForkedProcessError",
    "FoundBroker",
    "GroupKey",
    "KnownRoute",
    "MalformedOrderConfError",
    "MessageQueue",
    "NoNamesrvAnsweredError",
    "NoWritableQueueError",
    "Origin",
    "PublishInfo",
    "QueueData",
    "QueuePlace",
    "Removal",
    "RequestRefusedError",
    "RouteChange",
    "RouteClient",
    "RouteClientError",
    "Stale",
    "StaticMapping",
    "TooManyTopicsError",
    "TopicNotFoundError",
    "TopicRoute",
    "place_of",
]
