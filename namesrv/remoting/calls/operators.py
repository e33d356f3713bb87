"""What operators' tools call, through AdminService: the same rules, intents, files and journal."""

from __future__ import annotations

import contextlib
import json

from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv.core.errors import ConfigKeyDenied, InvalidField, KvNotFound, TopicNotFound
from namesrv.core.model import BrokerKey
from namesrv.core.registrations import RouteInfoManager
from namesrv.remoting.caller import Caller, Gate, Grade
from namesrv.remoting.wire import fields
from namesrv.remoting.wire.codes import ResponseCode
from namesrv.remoting.wire.headers import Request, answer
from namesrv.server.services.admin.servicer import AdminChanges, AdminQueries

_GIVEN = 100
"""Most lines of a request to change settings: as many as AdminService takes."""


class OperatorQueries:
    """Calls that only read."""

    def __init__(self, manager: RouteInfoManager, queries: AdminQueries) -> None:
        self._manager = manager
        self._queries = queries

    async def get_kv_config(self, request: Request, caller: Caller) -> bytes:
        """GET_KV_CONFIG, 101."""
        asked = pb.GetKvConfigRequest(namespace=_text(request, "namespace"), key=_text(request, "key"))
        told = await self._queries.kv_config.GetKvConfig(asked, caller.context)
        return answer(request, ResponseCode.SUCCESS, fields={"value": told.value})

    async def list_kv_configs(self, request: Request, _caller: Caller) -> bytes:
        """GET_KVLIST_BY_NAMESPACE, 219: the whole namespace, of which there is no page here."""
        namespace = _text(request, "namespace")
        entries = self._manager.kv_config.entries(namespace)
        if not entries:
            raise KvNotFound(namespace)
        body = json.dumps({"table": dict(sorted(entries.items()))}, separators=(",", ":"))
        return answer(request, ResponseCode.SUCCESS, body.encode())

    async def get_config(self, request: Request, caller: Caller) -> bytes:
        """GET_NAMESRV_CONFIG, 319: as Java's properties."""
        told = await self._queries.config.GetNamesrvConfig(pb.GetNamesrvConfigRequest(), caller.context)
        lines = (f"{entry.key}={entry.value}\n" for entry in sorted(told.entries, key=lambda entry: entry.key))
        return answer(request, ResponseCode.SUCCESS, "".join(lines).encode())


class OperatorChanges:
    """Calls that change something. What is not there counts as gone already, as in RocketMQ."""

    def __init__(self, manager: RouteInfoManager, changes: AdminChanges, gate: Gate) -> None:
        self._manager = manager
        self._changes = changes
        self._gate = gate

    async def put_kv_config(self, request: Request, caller: Caller) -> bytes:
        """PUT_KV_CONFIG, 100."""
        namespace, key = _text(request, "namespace"), _text(request, "key")
        asked = pb.PutKvConfigRequest(namespace=namespace, key=key)
        asked.value = _checked(request, "value")
        await self._changes.kv_config.PutKvConfig(asked, caller.context)
        return answer(request, ResponseCode.SUCCESS)

    async def delete_kv_config(self, request: Request, caller: Caller) -> bytes:
        """DELETE_KV_CONFIG, 102."""
        asked = pb.DeleteKvConfigRequest(namespace=_text(request, "namespace"), key=_text(request, "key"))
        await self._changes.kv_config.DeleteKvConfig(asked, caller.context)
        return answer(request, ResponseCode.SUCCESS)

    async def wipe_write_perm(self, request: Request, caller: Caller) -> bytes:
        """WIPE_WRITE_PERM_OF_BROKER, 205: of the groups of that name in every cluster."""
        topics = 0
        for cluster_name, broker_name in self._groups(request):
            asked = pb.WipeWritePermOfBrokerRequest(cluster_name=cluster_name, broker_name=broker_name)
            topics += (await self._changes.intents.WipeWritePermOfBroker(asked, caller.context)).wipe_topic_count
        return answer(request, ResponseCode.SUCCESS, fields={"wipeTopicCount": str(topics)})

    async def add_write_perm(self, request: Request, caller: Caller) -> bytes:
        """ADD_WRITE_PERM_OF_BROKER, 327: the same."""
        topics = 0
        for cluster_name, broker_name in self._groups(request):
            asked = pb.AddWritePermOfBrokerRequest(cluster_name=cluster_name, broker_name=broker_name)
            topics += (await self._changes.intents.AddWritePermOfBroker(asked, caller.context)).add_topic_count
        return answer(request, ResponseCode.SUCCESS, fields={"addTopicCount": str(topics)})

    async def delete_topic(self, request: Request, caller: Caller) -> bytes:
        """DELETE_TOPIC_IN_NAMESRV, 216."""
        asked = pb.DeleteTopicRequest(topic=_text(request, "topic"))
        if request.fields.get("clusterName"):
            asked.cluster_name = _text(request, "clusterName")
        with contextlib.suppress(TopicNotFound):
            await self._changes.intents.DeleteTopic(asked, caller.context)
        return answer(request, ResponseCode.SUCCESS)

    async def update_config(self, request: Request, caller: Caller) -> bytes:
        """UPDATE_NAMESRV_CONFIG, 318: keys that gRPC changes, too, and no other.

        Where settings may not be changed over this protocol, that is RocketMQ's answer to keys on its black list.
        """
        if not self._gate.allows(Grade.SETTINGS):
            raise ConfigKeyDenied("of any name")
        self._gate.check(caller, Grade.SETTINGS)
        asked = pb.UpdateNamesrvConfigRequest(values=_properties(request.body))
        await self._changes.config.UpdateNamesrvConfig(asked, caller.context)
        return answer(request, ResponseCode.SUCCESS)

    def _groups(self, request: Request) -> list[BrokerKey]:
        return self._manager.groups_named(_text(request, "brokerName"), None)


def _text(request: Request, name: str) -> str:
    fields.text(request, name)
    return _checked(request, name)


def _checked(request: Request, name: str) -> str:
    """A field's text, which may be empty. Raises InvalidField if it is not there, or has halves of characters."""
    value = request.fields.get(name)
    if value is None:
        raise InvalidField(name, "is missing")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidField(name, "has characters that are none") from None
    return value


def _properties(body: bytes) -> dict[str, str]:
    """Java's properties, ``key=value`` a line. Raises InvalidField."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InvalidField("body", "is no UTF-8") from None
    values: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise InvalidField("body", f"has a line without '=': {stripped[:40]!r}")
        values[key.strip()] = value.strip()
        if len(values) > _GIVEN:
            raise InvalidField("body", f"has more than {_GIVEN} settings")
    return values
