"""What the agent tells name servers about its broker."""

from __future__ import annotations

from namesrv_api.v1 import registration_service_pb2, route_data_pb2

from broker_agent.settings import AgentSettings
from broker_agent.topic_config import DataVersion, TopicConfigTable

_READ_AND_WRITE = 6


def broker_identity(settings: AgentSettings) -> route_data_pb2.BrokerIdentity:
    """The broker as every call names it."""
    return route_data_pb2.BrokerIdentity(
        cluster_name=settings.cluster,
        broker_name=settings.broker_name,
        broker_id=settings.broker_id,
        broker_addr=settings.broker_addr,
    )


def registration_of(settings: AgentSettings, table: TopicConfigTable) -> registration_service_pb2.RegisterBrokerRequest:
    """The registration with the full table, for any name server: it names no channel yet.

    If the broker may not be read or not be written, no topic promises more: its permission is masked by the broker's.
    That is RocketMQ 5's rule (BrokerController.registerBrokerAll); version 4 replaced the topic's own permission.
    """
    downgraded = settings.broker_permission & _READ_AND_WRITE != _READ_AND_WRITE
    mask = settings.broker_permission if downgraded else ~0
    return registration_service_pb2.RegisterBrokerRequest(
        broker=broker_identity(settings),
        ha_server_addr=settings.ha_server_addr,
        data_version=_data_version(table.data_version),
        topic_configs=[
            route_data_pb2.TopicConfig(
                topic_name=topic.topic_name,
                read_queue_nums=topic.read_queue_nums,
                write_queue_nums=topic.write_queue_nums,
                perm=topic.perm & mask,
                topic_sys_flag=topic.topic_sys_flag,
            )
            for topic in table.topics
        ],
    )


def _data_version(version: DataVersion) -> route_data_pb2.DataVersion:
    return route_data_pb2.DataVersion(
        timestamp_millis=version.timestamp_millis, counter=version.counter, state_version=version.state_version
    )
