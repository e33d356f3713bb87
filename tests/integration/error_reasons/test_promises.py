"""What the contract's comments promise of errors is what the programs send: reason, code, metadata, when to try again.

That no call sends another reason is checked wherever tests call servers: see ``tests/support/promised_errors.py``.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from docs.tools.grpc_pages import AGENT_REASONS_FILE, REASONS_FILE, Reason, error_reasons, read_contract
from namesrv.server.server import SERVICES as OF_NAME_SERVERS
from namesrv_common.grpc_errors import RichError
from tests.integration.error_reasons.agents import AGENT_CASES
from tests.integration.error_reasons.agents import SERVICES as OF_AGENTS
from tests.integration.error_reasons.name_servers import NAME_SERVER_CASES
from tests.support import promised_errors
from tests.support.promised_errors import of_any_call, promised

CASES: dict[str, dict[str, Any]] = {"namesrv_api": NAME_SERVER_CASES, "broker_agent_api": AGENT_CASES}
FILES = {"namesrv_api": REASONS_FILE, "broker_agent_api": AGENT_REASONS_FILE}
DOMAINS = {"namesrv_api": "namesrv.dev", "broker_agent_api": "agent.namesrv.dev"}
METADATA_KEY = re.compile(r"[a-z][a-zA-Z0-9-_]+")
"""What AIP-193 allows."""

BROKER_AGENT, CLIENTS = "broker_agent_api.v1.BrokerAgentService", "broker_agent_api.v1.ClientService"
SHOWN_ELSEWHERE = {
    (f"{BROKER_AGENT}.ChangeBrokerRole", "INVALID_FIELD"): "integration/agent/test_agent_changes.py",
    (f"{BROKER_AGENT}.ChangeBrokerRole", "NOT_DURABLE"): "unit/broker_agent/topics/test_topics_file.py",
    (f"{BROKER_AGENT}.ChangeBrokerRole", "TOPICS_FILE_CHANGED"): "unit/broker_agent/topics/test_topics_file.py",
    (f"{BROKER_AGENT}.UpdateBrokerPermission", "INVALID_FIELD"): "integration/agent/test_agent_changes.py",
    (f"{CLIENTS}.OpenClientChannel", "LIMIT_EXCEEDED"): "unit/broker_agent/clients/test_managers.py",
    (f"{CLIENTS}.RegisterFilterServer", "LIMIT_EXCEEDED"): "unit/broker_agent/clients/test_managers.py",
    ("broker_agent_api.v1.TopicConfigService.ListTopics", "LIMIT_EXCEEDED"): "integration/agent/test_topics.py",
}
"""What takes more than these cases have, and the test that shows it."""


@cache
def provoked(package: str, reason: str) -> tuple[list[RichError], frozenset[tuple[str, str]]]:
    """The errors of a reason's cases, each in a folder of its own, and which calls sent which reasons."""
    promised_errors.sent.clear()
    found: list[RichError] = []
    for case in CASES[package][reason]:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            errors = case(Path(folder), patch)
            found += asyncio.run(errors) if inspect.iscoroutine(errors) else errors
    return found, frozenset(promised_errors.sent)


@cache
def of_contract(package: str) -> dict[str, Reason]:
    """The reasons of a package by name, as their comments have them."""
    return {reason.name: reason for reason in error_reasons(read_contract()[FILES[package]])}


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in CASES for name in of_contract(package) | CASES[package]]
)
def test_a_reason_is_sent_as_its_comment_promises(package: str, name: str) -> None:
    """A key of metadata with a condition must be in one of the errors, and not in all."""
    reason, (errors, _) = of_contract(package)[name], provoked(package, name)
    kinds = {(error.domain, error.reason, error.code.name) for error in errors}
    assert kinds == {(DOMAINS[package], name, reason.code)}
    sent = [set(error.metadata) for error in errors]
    assert set.union(*sent) == reason.metadata.keys()
    assert all(METADATA_KEY.fullmatch(key) for key in reason.metadata)
    assert set.intersection(*sent) == {key for key, condition in reason.metadata.items() if not condition}
    assert all(value for error in errors for value in error.metadata.values())
    assert {error.retry_after_seconds is not None for error in errors} == {"RetryInfo" in reason.meaning}
    assert {bool(error.violations) for error in errors} == {"BadRequest" in reason.meaning}


@pytest.mark.parametrize("call", promised())
def test_a_call_sends_each_reason_of_its_comment(call: str) -> None:
    package = call.partition(".")[0]
    sent = {reason for of in CASES for name in CASES[of] for named, reason in provoked(of, name)[1] if named == call}
    elsewhere = {reason for named, reason in SHOWN_ELSEWHERE if named == call}
    assert promised()[call] - of_any_call(package) - {"SLOW_READER"} - sent == elsewhere


def test_streams_and_no_other_calls_promise_slow_reader() -> None:
    """One layer cuts the readers of all streams: what one of them is sent stands for the others."""
    promising = {call for call, reasons in promised().items() if "SLOW_READER" in reasons}
    assert promising == {
        method.full_name
        for service in (*OF_NAME_SERVERS, *OF_AGENTS)
        for method in service.methods
        if method.server_streaming
    }
