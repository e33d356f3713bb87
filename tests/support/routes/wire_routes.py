"""Routes that tests use."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2 as pb

from route_client.cache import Answer, Origin, Removal
from route_client.route import GroupKey, TopicRoute, from_wire

CLUSTER = "DefaultCluster"
NS_A = Origin("ns-a", "0001")
NS_B = Origin("ns-b", "0009")


def wire_route(
    *groups: str,
    ids: tuple[int, ...] = (0, 1),
    queues: int = 4,
    perm: int = 6,
    order: str | None = None,
    zones: dict[str, str] | None = None,
) -> pb.TopicRouteData:
    """A route on groups (broker-a unless said), each with a broker for each id at a port that says which."""
    names = groups or ("broker-a",)
    return pb.TopicRouteData(
        order_topic_conf=order,
        queue_datas=[
            pb.QueueData(
                broker_name=name, cluster_name=CLUSTER, read_queue_nums=queues, write_queue_nums=queues, perm=perm
            )
            for name in names
        ],
        broker_datas=[
            pb.BrokerData(
                broker_name=name,
                cluster_name=CLUSTER,
                broker_addrs=[pb.BrokerAddr(broker_id=id_, broker_addr=addr(name, id_)) for id_ in ids],
                zone_name=(zones or {}).get(name),
            )
            for name in names
        ],
    )


def addr(name: str = "broker-a", broker_id: int = 0) -> str:
    """The address that ``wire_route`` gives a broker."""
    return f"{name}:{10911 + broker_id}"


def route(*groups: str, **kwargs: object) -> TopicRoute:
    """As ``wire_route``, as the client holds it."""
    return from_wire(wire_route(*groups, **kwargs))  # type: ignore[arg-type]


def answer(
    told: TopicRoute | None, revision: int = 1, origin: Origin = NS_A, removals: tuple[Removal, ...] = ()
) -> Answer:
    """What a name server says about TopicTest."""
    return Answer("TopicTest", told, origin, revision, removals)


def removal(reason: pb.RemovalReason) -> Removal:
    """A broker that left."""
    return Removal(GroupKey(CLUSTER, "broker-a"), 0, addr(), reason)
