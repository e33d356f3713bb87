"""The table of requests: what each needs, and what answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from namesrv.core.errors import ReadOnlyReplica
from namesrv.remoting.caller import Caller, Gate, Grade
from namesrv.remoting.calls.lists import ListCalls
from namesrv.remoting.calls.lookups import LookupCalls
from namesrv.remoting.calls.operators import OperatorChanges, OperatorQueries
from namesrv.remoting.calls.registrations import RegistrationCalls
from namesrv.remoting.served import Served
from namesrv.remoting.wire.codes import RequestCode as Code
from namesrv.remoting.wire.headers import Request
from namesrv.server.services.admin.servicer import AdminQueries
from namesrv.server.services.route.cluster_test import ClusterTest

AtOnce = Callable[[Request, Caller], bytes | None]
"""Answers without waiting for anything; None: the call has to wait for something after all."""
InTurn = Callable[[Request, Caller], Awaitable[bytes]]
"""Answers after what was asked before it on the same connection, and was not answered at once."""


class Calls(NamedTuple):
    """What answers requests, by their code."""

    at_once: Mapping[int, AtOnce]
    in_turn: Mapping[int, InTurn]


def calls_of(
    served: Served,
    queries: AdminQueries,
    gate: Gate,
    *,
    product_env: ClusterTest | None,
    registrations: RegistrationCalls | None,
    changes: OperatorChanges | None,
    leader: Callable[[], str] | None = None,
) -> Calls:
    """The calls of a name server, or of a copy of one.

    Args:
        served: The tables that are read.
        queries: Reads what operators set.
        gate: Decides who may call.
        product_env: Is asked for topics that are unknown here; None: nobody is.
        registrations: Changes what brokers report; None on a copy.
        changes: Changes what operators decide; None on a copy.
        leader: Of a copy: whom it follows now.
    """
    lookups, lists = LookupCalls(served, product_env), ListCalls(served)
    reading = OperatorQueries(served.manager, queries)
    at_once: dict[int, AtOnce] = {
        Code.GET_ROUTEINFO_BY_TOPIC: gate.guarded(Grade.LOOKUPS, lookups.route),
        Code.GET_BROKER_MEMBER_GROUP: gate.guarded(Grade.LOOKUPS, lookups.member_group),
    }
    in_turn: dict[int, InTurn] = {
        Code.GET_ROUTEINFO_BY_TOPIC: lookups.route_elsewhere,
        Code.GET_BROKER_CLUSTER_INFO: gate.guarded(Grade.LOOKUPS, lists.cluster_info),
        Code.GET_ALL_TOPIC_LIST: gate.guarded(Grade.LOOKUPS, lists.all_topics),
        Code.GET_TOPICS_BY_CLUSTER: gate.guarded(Grade.LOOKUPS, lists.topics_of_cluster),
        Code.GET_SYSTEM_TOPIC_LIST: gate.guarded(Grade.LOOKUPS, lists.system_topics),
        Code.GET_UNIT_TOPIC_LIST: gate.guarded(Grade.LOOKUPS, lists.unit_topics),
        Code.GET_UNIT_SUB_TOPIC_LIST: gate.guarded(Grade.LOOKUPS, lists.unit_sub_topics),
        Code.GET_UNIT_SUB_UNUNIT_TOPIC_LIST: gate.guarded(Grade.LOOKUPS, lists.unit_sub_ununit_topics),
        Code.GET_KV_CONFIG: gate.guarded(Grade.LOOKUPS, reading.get_kv_config),
        Code.GET_KVLIST_BY_NAMESPACE: gate.guarded(Grade.LOOKUPS, reading.list_kv_configs),
        Code.GET_NAMESRV_CONFIG: gate.guarded(Grade.OPERATORS, reading.get_config),
    }
    if registrations is not None:
        # These know the groups that they are about, and check themselves who may speak for them.
        at_once[Code.QUERY_DATA_VERSION] = registrations.query_data_version
        at_once[Code.BROKER_HEARTBEAT] = registrations.heartbeat
        in_turn[Code.REGISTER_BROKER] = registrations.register
        in_turn[Code.UNREGISTER_BROKER] = registrations.unregister
        in_turn[Code.REGISTER_TOPIC] = registrations.register_topic
    if changes is not None:
        in_turn[Code.PUT_KV_CONFIG] = gate.guarded(Grade.OPERATORS, changes.put_kv_config)
        in_turn[Code.DELETE_KV_CONFIG] = gate.guarded(Grade.OPERATORS, changes.delete_kv_config)
        in_turn[Code.WIPE_WRITE_PERM_OF_BROKER] = gate.guarded(Grade.OPERATORS, changes.wipe_write_perm)
        in_turn[Code.ADD_WRITE_PERM_OF_BROKER] = gate.guarded(Grade.OPERATORS, changes.add_write_perm)
        in_turn[Code.DELETE_TOPIC] = gate.guarded(Grade.OPERATORS, changes.delete_topic)
        in_turn[Code.UPDATE_NAMESRV_CONFIG] = changes.update_config
    if leader is not None:

        def refused(_request: Request, _caller: Caller) -> bytes:
            raise ReadOnlyReplica(leader())

        at_once |= {code: refused for code in Code if code not in at_once and code not in in_turn}
    return Calls(at_once, in_turn)
