"""The fast listener: who may call, its threads and its errors."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import pytest

from broker_agent.auth import ACTIONS, COMMANDS, by_permits, own_group_commands
from broker_agent.clients.client_service import SERVICE as CLIENT_SERVICE
from broker_agent.listener import SERVICE as AGENT_SERVICE
from broker_agent.listener import CallThreads
from broker_agent.topics.topic_service import SERVICE as TOPIC_SERVICE
from namesrv_common.errors import CommonReason, Refused
from namesrv_common.server.permits import AgentAction, Permits, Principal
from namesrv_common.topic_names import GroupPattern
from tests.support.patience import TIMEOUT
from tests.support.refusals import refuses

GROUP = ("DefaultCluster", "broker-a")
ROLE = "ChangeBrokerRole"
STATUS = "GetAgentStatus"
HEARTBEAT = "Heartbeat"
FILTER_SERVER = "RegisterFilterServer"


class Caller:
    """What gRPC reports about a call."""

    def __init__(self, *names: str, peer: str = "ipv4:10.0.0.7:1", common_name: str = "") -> None:
        self._names = [name.encode() for name in names]
        self._common_name = common_name.encode()
        self._peer = peer

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        return {"peer_dns": self._names, "x509_common_name": [self._common_name] if self._common_name else []}

    def invocation_metadata(self) -> Any:
        return ()

    def peer(self) -> str:
        return self._peer


def may(rule: Any, call: str, caller: Caller) -> bool:
    try:
        rule(call, caller)
    except Refused:
        return False
    return True


OWN = own_group_commands(lambda: frozenset({"broker-a.example", "localhost", "*.example"}), GROUP)


def test_every_call_of_the_contract_is_some_action() -> None:
    names = [method.name for service in (AGENT_SERVICE, TOPIC_SERVICE, CLIENT_SERVICE) for method in service.methods]
    assert sorted(ACTIONS) == sorted(names), "no two of them have one name"
    assert {action for actions in ACTIONS.values() for action in actions} == set(AgentAction)


@pytest.mark.parametrize(
    ("caller", "commands"),
    [
        (Caller("broker-a.example"), True),
        (Caller("x", "broker-a.example"), True),
        (Caller(common_name="broker-a.example"), True),
        (Caller("broker-b.example"), False),
        (Caller("localhost"), False),
        (Caller("*.example"), False),
        (Caller("x", common_name="broker-a.example"), False),
        (Caller(), False),
        (Caller("x", peer="ipv4:127.0.0.1:1"), True),
        (Caller("x", peer="ipv6:%5B::1%5D:1"), True),
    ],
)
def test_without_permits_commands_come_from_this_machine_or_own_group(caller: Caller, *, commands: bool) -> None:
    for name, actions in ACTIONS.items():
        assert may(OWN, name, caller) == (commands or not COMMANDS.issuperset(actions)), name


def test_a_permit_for_an_action_is_for_the_groups_it_names_only() -> None:
    operate = {AgentAction.OPERATE: (GroupPattern.parse("DefaultCluster/broker-*"),)}
    permits = Permits({"ops": Principal("ops", agents=operate)})
    assert may(by_permits(lambda: permits, GROUP), ROLE, Caller("ops"))
    assert may(by_permits(lambda: permits, GROUP), STATUS, Caller("ops"))
    assert not may(by_permits(lambda: permits, GROUP), HEARTBEAT, Caller("ops"))
    assert not may(by_permits(lambda: permits, GROUP), FILTER_SERVER, Caller("ops", peer="ipv4:127.0.0.1:1"))
    assert not may(by_permits(lambda: permits, ("Other", "broker-a")), ROLE, Caller("ops"))
    assert not may(by_permits(lambda: permits, GROUP), ROLE, Caller("unknown"))
    nameless: Any = Caller()
    with refuses(CommonReason.NOT_AUTHENTICATED):
        by_permits(lambda: permits, GROUP)(ROLE, nameless)


class Request:
    """What a call is given."""


@pytest.mark.parametrize("callers_leave", [False, True])
async def test_calls_that_are_cancelled_or_fail_leave_nothing_behind(*, callers_leave: bool) -> None:
    threads, begun, lets = CallThreads(2, "calls"), threading.Semaphore(0), threading.Event()

    def call(request: object) -> object:
        begun.release()
        assert lets.wait(TIMEOUT)
        return request

    async with asyncio.timeout(TIMEOUT):
        working = [asyncio.create_task(threads.run(call, number)) for number in range(2)]
        for task in working:
            assert await asyncio.to_thread(begun.acquire, timeout=TIMEOUT)
            if callers_leave:
                task.cancel()
        requests = [Request() for _ in range(50)]
        kept = WeakSet(requests)
        waiting = [asyncio.create_task(threads.run(call, request)) for request in requests]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        del requests, waiting, task
        await asyncio.sleep(0)  # the loop drops its last callbacks
        gc.collect()
        assert not kept
        lets.set()
        for _ in range(3):
            with pytest.raises(TypeError, match="argument: 'request'"):
                await threads.run(call)
        assert await threads.run(call, 2) == 2, "a thread is free again when the call of one that left has ended"
        if not callers_leave:
            assert await asyncio.gather(*working) == [0, 1]
    threads.shutdown()
