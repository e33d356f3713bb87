"""Routes for producers and consumers: watched, cached, and never lost to an empty answer.

``RouteClient`` is for threads, ``AioRouteClient`` for asyncio; ``route_client.allocate`` shares queues among consumers.
Begin reading in ``aio_client`` and ``source.route_source``.
"""

from groundwork.channels import ClientFiles
from route_client.aio_client import AioRouteClient
from route_client.client import RouteClient
from route_client.errors import (
    AllocationError,
    BadTopicNameError,
    ClientClosedError,
    EndpointListError,
    MalformedOrderConfError,
    NoNamesrvAnsweredError,
    NoWritableQueueError,
    RequestRefusedError,
    RouteClientError,
    TooManyTopicsError,
    TopicNotFoundError,
)
from route_client.routes.broker_addresses import FoundBroker
from route_client.routes.cache import Answer, Counters, KnownRoute, Origin, RouteChange, Stale
from route_client.routes.divergence import Divergence
from route_client.routes.publish_info import PublishInfo
from route_client.routes.route import BrokerData, GroupKey, MessageQueue, QueueData, StaticMapping, TopicRoute
from route_client.routes.safety import Removal
from route_client.routes.static_topics import QueuePlace, place_of
from route_client.settings import ClientSettings
from route_client.status import ClientStatus

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
    "Divergence",
    "EndpointListError",
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
