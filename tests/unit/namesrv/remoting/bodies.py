"""Bodies of registrations, as tests write them and have them read."""

from __future__ import annotations

import json
from typing import Any

from namesrv.core.model import TopicTableFingerprint
from namesrv.remoting.bodies import RegistrationBody, read_registration


def unquoted(value: Any) -> str:
    """JSON as fastjson writes it: keys that are numbers without quotes."""
    if isinstance(value, dict):
        members = (
            f"{key if isinstance(key, int) else json.dumps(key)}:{unquoted(inner)}" for key, inner in value.items()
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + " , ".join(map(unquoted, value)) + "]"
    return json.dumps(value)


def read(data: bytes, crc32: int = 0, held: TopicTableFingerprint | None = None) -> RegistrationBody:
    return read_registration(data, crc32, (), held)


def packed(value: Any) -> bytes:
    """JSON as RocketMQ writes it."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def topic(name: str, **changed: Any) -> dict[str, Any]:
    config = {"order": False, "perm": 6, "readQueueNums": 4, "topicName": name, "topicSysFlag": 0, "writeQueueNums": 4}
    return {"attributes": {}, "topicFilterType": "SINGLE_TAG", **config, **changed}


def body(topics: dict[str, Any], **wrapper: Any) -> dict[str, Any]:
    version = {"counter": 8, "stateVersion": 1, "timestamp": 1795340540541}
    table = {"dataVersion": version, "mappingDataVersion": version, "topicConfigTable": topics, **wrapper}
    return {"filterServerList": [], "topicConfigSerializeWrapper": table}
