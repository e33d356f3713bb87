"""The fast listener: who may call, its threads and its errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

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


class Blocked:
    """A call that blocks until it is let."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.lets = threading.Event()

    def __call__(self, number: int) -> int:
        self.begun.release()
        assert self.lets.wait(TIMEOUT)
        return number

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=TIMEOUT)


@asynccontextmanager
async def two_threads() -> AsyncIterator[tuple[CallThreads, Blocked]]:
    threads, call = CallThreads(2, "calls"), Blocked()
    try:
        async with asyncio.timeout(TIMEOUT):
            yield threads, call
    finally:
        call.lets.set()
        threads.shutdown()


async def test_calls_that_are_cancelled_while_they_wait_leave_nothing_behind() -> None:
    async with two_threads() as (threads, call):
        working = [asyncio.create_task(threads.run(call, number)) for number in range(2)]
        for _ in working:
            await call.until_begun()
        waiting = [asyncio.create_task(threads.run(call, number)) for number in range(2, 50)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert threads._pool._calls.empty()
        call.lets.set()
        assert await asyncio.gather(*working) == [0, 1]


async def test_a_thread_whose_caller_went_away_is_free_when_its_call_has_ended() -> None:
    async with two_threads() as (threads, call):
        gone = [asyncio.create_task(threads.run(call, number)) for number in range(2)]
        for task in gone:
            await call.until_begun()
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        later = asyncio.create_task(threads.run(call, 2))
        await asyncio.sleep(0)
        assert threads._pool._calls.empty(), "it does not wait behind them"
        call.lets.set()
        assert await later == 2


async def test_an_error_of_a_call_is_its_callers_and_frees_the_thread() -> None:
    def fails() -> None:
        raise OSError("disk full")

    async with two_threads() as (threads, _call):
        for _ in range(5):
            with pytest.raises(OSError, match="disk full"):
                await threads.run(fails)
