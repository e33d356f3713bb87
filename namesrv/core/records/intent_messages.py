"""Intents as they travel."""

from __future__ import annotations

from namesrv_api.v1 import admin_service_pb2

from namesrv.core.records.intents import HoldKey, Intent, IntentKey, IntentKind
from namesrv.core.records.rows import BrokerKey


def intent_message(intent: Intent) -> admin_service_pb2.Intent:
    """An intent on the wire."""
    message = admin_service_pb2.Intent(
        kind=admin_service_pb2.Intent.Kind.Name(intent.kind.value),
        cluster_name=intent.key.cluster_name,
        caller=intent.caller,
        since_millis=intent.since_millis,
        comment=intent.comment,
        ends_at_millis=intent.ends_at_millis,
    )
    if isinstance(intent.key, BrokerKey):
        message.broker_name = intent.key.broker_name
    else:
        message.topic = intent.key.topic
    return message


def intent_of(message: admin_service_pb2.Intent) -> Intent:
    """An intent from the wire. Raises ValueError for a kind that this version does not know."""
    kind = IntentKind(message.kind)
    key: IntentKey = BrokerKey(message.cluster_name, message.broker_name)
    if kind is IntentKind.TOPIC_HOLD:
        key = HoldKey(message.topic, message.cluster_name if message.HasField("cluster_name") else None)
    ends_at_millis = message.ends_at_millis if message.HasField("ends_at_millis") else None
    return Intent(kind, key, message.caller, message.since_millis, message.comment, ends_at_millis)
