"""Numbers of RocketMQ's remoting protocol: requests and versions."""

from __future__ import annotations

from enum import IntEnum


class RequestCode(IntEnum):
    """The requests that a name server of RocketMQ takes (RocketMQ: RequestCode)."""

    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST = 206
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC = 217
    GET_KVLIST_BY_NAMESPACE = 219
    GET_TOPICS_BY_CLUSTER = 224
    GET_SYSTEM_TOPIC_LIST = 304
    GET_UNIT_TOPIC_LIST = 311
    GET_UNIT_SUB_TOPIC_LIST = 312
    GET_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    QUERY_DATA_VERSION = 322
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904


OWN_VERSION = 513
"""The version in answers (RocketMQ: MQVersion): 5.5.0's, whose protocol this is."""

STANDARD_JSON_VERSION = 401
"""From 4.9.4 on, clients read keys of JSON in quotes only; some older ones read numbers as keys only without."""

GO_AWAY_VERSION = 475
"""Later versions than 5.3.1 know GO_AWAY."""
