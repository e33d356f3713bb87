"""Requests in RocketMQ's remoting protocol, as a Java broker or client of RocketMQ 5 sends them.

A frame: four bytes of length of the rest; one byte of header encoding (0: JSON) and three of header length; the header
as JSON; the body as JSON (RemotingCommand and RegisterBrokerBody of RocketMQ).
"""

from __future__ import annotations

import json
import socket
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bench.workload import HEARTBEAT_TIMEOUT_MILLIS, PERM_READ_WRITE, TIMESTAMP_MILLIS, Broker, topic_name

GET_ROUTEINFO_BY_TOPIC = 105
REGISTER_BROKER = 103
QUERY_DATA_VERSION = 322
BROKER_HEARTBEAT = 904
GET_BROKER_CLUSTER_INFO = 106

FIRST_OPAQUE = 1_000_000_000
"""Whoever sends a frame puts its own number of ten digits in this one's place."""
_VERSION = 513
"""The number that RocketMQ gives to its version 5.5.0: such a client is answered in standard JSON."""
_HEADER_LENGTH_MASK = 0xFFFFFF
_ASK_SECONDS = 10.0
_CRC32_MASK = 0x7FFFFFFF


class Frame(NamedTuple):
    """One request."""

    data: bytes
    opaque_at: int
    """Where the ten digits of its number begin."""


def frame(code: int, fields: Mapping[str, str], body: bytes = b"") -> Frame:
    """A request with its header fields."""
    header = _json(
        {
            "code": code,
            "extFields": fields,
            "flag": 0,
            "language": "JAVA",
            "opaque": FIRST_OPAQUE,
            "serializeTypeCurrentRPC": "JSON",
            "version": _VERSION,
        }
    )
    data = struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
    return Frame(data, data.index(str(FIRST_OPAQUE).encode()))


def get_route(topic: str) -> Frame:
    """Asks for a topic's route."""
    return frame(GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


def register(broker: Broker, topics: Iterable[int], queue_nums: int, counter: int) -> Frame:
    """A master's full registration.

    A broker that has but one topic reports one of its own name, too, as brokers of RocketMQ always do: RouteInfoManager
    refuses an unknown broker with exactly one topic, whose full registration it takes for an increment.

    Args:
        broker: The broker.
        topics: Numbers of its topics.
        queue_nums: Queues of each of them.
        counter: Counter of its data version.
    """
    names = [topic_name(topic) for topic in topics]
    if len(names) == 1:
        names.append(broker.name)
    table = {
        name: {
            "attributes": {},
            "order": False,
            "perm": PERM_READ_WRITE,
            "readQueueNums": queue_nums,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": queue_nums,
        }
        for name in names
    }
    wrapper = {
        "dataVersion": _data_version(counter),
        "mappingDataVersion": _data_version(0),
        "topicConfigTable": table,
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    body = _json({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
    fields = {
        **_identity(broker),
        "haServerAddr": broker.addr,
        "heartbeatTimeoutMillis": str(HEARTBEAT_TIMEOUT_MILLIS),
        "enableActingMaster": "false",
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(body) & _CRC32_MASK),
    }
    return frame(REGISTER_BROKER, fields, body)


def query_data_version(broker: Broker, counter: int) -> Frame:
    """Asks whether the name server holds another version."""
    return frame(QUERY_DATA_VERSION, _identity(broker), _json(_data_version(counter)))


def heartbeat(broker: Broker) -> Frame:
    """Says that a broker lives."""
    return frame(BROKER_HEARTBEAT, _identity(broker))


def ask(host: str, port: int, request: Frame) -> bytes:
    """Sends one request over a connection of its own; returns the body of the answer."""
    with socket.create_connection((host, port), timeout=_ASK_SECONDS) as connection, connection.makefile("rb") as file:
        connection.sendall(request.data)
        length, header_length = struct.unpack(">ii", file.read(8))
        header_length &= _HEADER_LENGTH_MASK
        file.read(header_length)
        return file.read(length - 4 - header_length)


def _identity(broker: Broker) -> dict[str, str]:
    return {
        "brokerName": broker.name,
        "brokerAddr": broker.addr,
        "clusterName": broker.cluster,
        "brokerId": "0",
    }


def _data_version(counter: int) -> dict[str, int]:
    return {"counter": counter, "stateVersion": 0, "timestamp": TIMESTAMP_MILLIS}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
