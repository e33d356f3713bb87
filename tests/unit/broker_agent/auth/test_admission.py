"""The gate of the agent's calls: by permits, and by the group's own certificates where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker_agent.auth import ACTIONS, COMMANDS, SERVICES, AgentAdmission, by_permits, own_group_commands
from namesrv_common.errors import CommonReason, Refused
from namesrv_common.group_patterns import GroupPattern
from namesrv_common.server.permits import AgentAction, Permits, Principal
from tests.support.refusals import refuses

GROUP = ("DefaultCluster", "broker-a")
ROLE = "broker_agent_api.v1.BrokerAgentService.ChangeBrokerRole"
STATUS = "broker_agent_api.v1.BrokerAgentService.GetAgentStatus"
HEARTBEAT = "broker_agent_api.v1.ClientService.Heartbeat"
FILTER_SERVER = "broker_agent_api.v1.ClientService.RegisterFilterServer"


class Caller:
    """What gRPC tells of a call."""

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
        AgentAdmission(rule).check(call, caller)
    except Refused:
        return False
    return True


OWN = own_group_commands(lambda: frozenset({"broker-a.example", "localhost", "*.example"}), GROUP)


def test_every_call_of_the_contract_is_some_action() -> None:
    assert ACTIONS.keys() == {method.full_name for service in SERVICES for method in service.methods}
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
        (Caller("x", peer="ipv6:[::1]:1"), True),
        (Caller("x", peer="ipv6:%5B::ffff:127.0.0.1%5D:1"), True),
        (Caller("x", peer="ipv4:12.7.0.1:1"), False),
        (Caller("x", peer="ipv6:%5B::12%5D:1"), False),
    ],
)
def test_with_mutual_tls_and_no_permits_commands_come_from_this_machine_or_the_own_group(
    caller: Caller, *, commands: bool
) -> None:
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
    with refuses(CommonReason.NOT_AUTHENTICATED):
        AgentAdmission(by_permits(lambda: permits, GROUP)).check(ROLE, Caller())


def test_a_flood_of_refused_calls_makes_few_lines() -> None:
    clock = 0.0
    admission = AgentAdmission(by_permits(Permits, GROUP), lambda: clock)
    with capture_logs() as lines:
        for at in (0.0,) * 50 + (1.0,):
            clock = at
            with refuses(CommonReason.NOT_PERMITTED):
                admission.check(ROLE, Caller("x"))
    assert [(line["event"], line["not_told"]) for line in lines] == [("call_refused", 0), ("call_refused", 49)]
