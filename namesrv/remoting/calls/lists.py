"""Lists of topics and brokers. RocketMQ has no pages: each is a whole answer, made in steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from namesrv.core.errors import ListDisabled
from namesrv.core.slices import Sliced
from namesrv.core.topic_lists import UNIT, UNIT_SUB
from namesrv.remoting.caller import Caller
from namesrv.remoting.served import Served
from namesrv.remoting.wire import fields
from namesrv.remoting.wire.codes import ResponseCode
from namesrv.remoting.wire.headers import Request, answer
from namesrv.server.background.table_writer import run_cooperatively

LIST_SLICE = 5_000
"""Names that are encoded before giving way: about a millisecond."""

GROUP_SLICE = 100
"""Groups that are encoded before giving way: less than a millisecond."""

_ALL = 2**31
"""More topics than there can be: the whole list is one page."""

_Names = Callable[[str, int], Sliced[list[str]]]


class ListCalls:
    """Lists, from the tables as they are while the list is made."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._lists = served.manager.topic_lists

    async def cluster_info(self, request: Request, _caller: Caller) -> bytes:
        """GET_BROKER_CLUSTER_INFO, 106."""
        body = await run_cooperatively(self._cluster_info(bare_keys=fields.bare_keys(request)))
        return answer(request, ResponseCode.SUCCESS, body)

    async def all_topics(self, request: Request, _caller: Caller) -> bytes:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 206."""
        if not self._served.manager.behaviour.enable_all_topic_list:
            raise ListDisabled("enableAllTopicList")
        return await self._answered(request, self._lists.all_after)

    async def topics_of_cluster(self, request: Request, _caller: Caller) -> bytes:
        """GET_TOPICS_BY_CLUSTER, 224."""
        self._check_enabled()
        cluster_name = fields.text(request, "cluster")
        return await self._answered(request, partial(self._lists.of_cluster_after, cluster_name))

    async def system_topics(self, request: Request, _caller: Caller) -> bytes:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS, 304."""
        return await self._answered(request, self._lists.system_after, self._lists.broker_addr())

    async def unit_topics(self, request: Request, _caller: Caller) -> bytes:
        """GET_UNIT_TOPIC_LIST, 311."""
        self._check_enabled()
        return await self._answered(request, partial(self._lists.with_flags_after, UNIT, 0))

    async def unit_sub_topics(self, request: Request, _caller: Caller) -> bytes:
        """GET_HAS_UNIT_SUB_TOPIC_LIST, 312."""
        self._check_enabled()
        return await self._answered(request, partial(self._lists.with_flags_after, UNIT_SUB, 0))

    async def unit_sub_ununit_topics(self, request: Request, _caller: Caller) -> bytes:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, 313."""
        self._check_enabled()
        return await self._answered(request, partial(self._lists.with_flags_after, UNIT_SUB, UNIT))

    def _check_enabled(self) -> None:
        if not self._served.manager.behaviour.enable_topic_list:
            raise ListDisabled("enableTopicList")

    async def _answered(self, request: Request, names: _Names, broker_addr: str | None = None) -> bytes:
        body = await run_cooperatively(_topic_list(names, broker_addr))
        return answer(request, ResponseCode.SUCCESS, body)

    def _cluster_info(self, *, bare_keys: bool) -> Sliced[bytes]:
        parts: list[bytes] = []
        groups = 0
        for part in self._served.routes.cluster_info(bare_keys=bare_keys):
            if part is not None:
                parts.append(part)
                continue
            groups += 1
            if groups % GROUP_SLICE == 0:
                yield
        return b"".join(parts)


def _topic_list(names: _Names, broker_addr: str | None) -> Sliced[bytes]:
    """A TopicList as JSON."""
    topics = yield from names("", _ALL)
    parts: list[str] = []
    for start in range(0, len(topics), LIST_SLICE):
        parts.append(json.dumps(topics[start : start + LIST_SLICE], separators=(",", ":"))[1:-1])
        yield
    addr = "" if broker_addr is None else f'"brokerAddr":{json.dumps(broker_addr)},'
    return f'{{{addr}"topicList":[{",".join(parts)}]}}'.encode()
