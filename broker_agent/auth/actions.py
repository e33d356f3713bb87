"""The action that each call of the agent is: what a permit must grant for it."""

from __future__ import annotations

from collections.abc import Mapping

from broker_agent_api.v1 import broker_agent_service_pb2, client_service_pb2, topic_config_service_pb2
from google.protobuf.descriptor import ServiceDescriptor

from groundwork.permits import AgentAction

COMMANDS = frozenset({AgentAction.FILTER_SERVERS, AgentAction.TOPICS, AgentAction.OPERATE})
"""Actions that change what the broker is registered as."""

_READ = (AgentAction.READ, AgentAction.TOPICS, AgentAction.OPERATE)
"""Who may change something may also see what there is."""

_OF_CALLS: Mapping[str, tuple[AgentAction, ...]] = {
    "GetAgentStatus": _READ,
    "ChangeBrokerRole": (AgentAction.OPERATE,),
    "UpdateBrokerPermission": (AgentAction.OPERATE,),
    "CreateOrUpdateTopic": (AgentAction.TOPICS,),
    "DeleteTopic": (AgentAction.TOPICS,),
    "GetTopic": _READ,
    "ListTopics": (*_READ, AgentAction.REPLICATE),
    "OpenClientChannel": (AgentAction.CLIENTS,),
    "Heartbeat": (AgentAction.CLIENTS,),
    "UnregisterClient": (AgentAction.CLIENTS,),
    "ListConsumerIds": (*_READ, AgentAction.CLIENTS),  # consumers share the queues out among themselves
    "ListConsumerConnections": _READ,
    "ListProducerConnections": _READ,
    "ListConsumerFilters": _READ,
    "RegisterFilterServer": (AgentAction.FILTER_SERVERS,),
}

SERVICES: tuple[ServiceDescriptor, ...] = (
    broker_agent_service_pb2.DESCRIPTOR.services_by_name["BrokerAgentService"],
    topic_config_service_pb2.DESCRIPTOR.services_by_name["TopicConfigService"],
    client_service_pb2.DESCRIPTOR.services_by_name["ClientService"],
)

ACTIONS: Mapping[str, tuple[AgentAction, ...]] = {
    method.full_name: _OF_CALLS[method.name] for service in SERVICES for method in service.methods
}
"""By a call's full name: actions of which a permit for any one is enough."""
