"""The comment of each call promises the errors that the call sends: no reason is missing, and none is too many.

That no call sends another reason is checked wherever tests call servers: see ``tests/support/promised_errors.py``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from namesrv.server.listener import SERVICES as OF_NAME_SERVERS
from tests.integration.error_reasons.from_agents import AGENT_CASES, AGENT_EACH_CALL
from tests.integration.error_reasons.from_agents import SERVICES as OF_AGENTS
from tests.integration.error_reasons.from_each_call import EACH_CALL
from tests.integration.error_reasons.from_name_servers import NAME_SERVER_CASES
from tests.support import promised_errors
from tests.support.promised_errors import of_any_call, promised, reasons_of

BROKER_AGENT, CLIENTS = "broker_agent_api.v1.BrokerAgentService", "broker_agent_api.v1.ClientService"
SHOWN_ELSEWHERE = {
    (f"{BROKER_AGENT}.ChangeBrokerRole", "INVALID_FIELD"): "unit/broker_agent/test_agent_changes.py",
    (f"{BROKER_AGENT}.ChangeBrokerRole", "NOT_DURABLE"): "unit/broker_agent/topics/test_manager.py",
    (f"{BROKER_AGENT}.ChangeBrokerRole", "TOPICS_FILE_CHANGED"): "unit/broker_agent/topics/test_topics_file.py",
    (f"{BROKER_AGENT}.UpdateBrokerPermission", "INVALID_FIELD"): "unit/broker_agent/test_agent_changes.py",
    (f"{CLIENTS}.OpenClientChannel", "LIMIT_EXCEEDED"): "unit/broker_agent/clients/test_channels.py",
    (f"{CLIENTS}.RegisterFilterServer", "LIMIT_EXCEEDED"): "unit/broker_agent/clients/test_filter_server_manager.py",
    (
        "broker_agent_api.v1.TopicConfigService.ListTopics",
        "LIMIT_EXCEEDED",
    ): "unit/broker_agent/topics/test_servicer.py",
}
"""What takes more than this test has, and the test that shows it."""


@pytest.mark.parametrize("call", promised())
def test_a_comment_names_reasons_of_the_contract_only(call: str) -> None:
    assert promised()[call] - reasons_of(call.split(".", maxsplit=1)[0]) == set()


def test_streams_and_no_other_calls_promise_slow_reader() -> None:
    """One layer cuts the readers of all streams: what one of them is sent stands for the others."""
    promising = {call for call, reasons in promised().items() if "SLOW_READER" in reasons}
    assert promising == {
        method.full_name
        for service in (*OF_NAME_SERVERS, *OF_AGENTS)
        for method in service.methods
        if method.server_streaming
    }


def test_each_promised_reason_is_sent(tmp_path: Path) -> None:
    promised_errors.sent.clear()
    for number, case in enumerate([*NAME_SERVER_CASES.values(), *EACH_CALL]):
        (folder := tmp_path / f"n{number}").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            asyncio.run(case(folder, patch))
    for number, agent_case in enumerate([*AGENT_CASES.values(), *AGENT_EACH_CALL]):
        (folder := tmp_path / f"a{number}").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            agent_case(folder, patch)
    pairs = {
        (call, reason)
        for call, reasons in promised().items()
        for reason in reasons - of_any_call(call.split(".")[0]) - {"SLOW_READER"}
    }
    assert sorted(pairs - promised_errors.sent) == sorted(SHOWN_ELSEWHERE)
