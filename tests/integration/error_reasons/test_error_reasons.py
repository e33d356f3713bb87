"""What the comments of error_reason.proto promise is what the programs send: code, metadata, when to try again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from broker_agent_api.v1.client_service_pb2 import HeartbeatRequest, ProducerData

from docs.tools.generate_clients import AGENT_REASONS_FILE, REASONS_FILE, Reason, error_reasons, read_contract
from groundwork.grpc_errors import RichError
from tests.integration.error_reasons.from_agents import AGENT_CASES, of_clients
from tests.integration.error_reasons.from_name_servers import NAME_SERVER_CASES, refused
from tests.support.registrations import registration

REASONS_FILES = {"namesrv_api": REASONS_FILE, "broker_agent_api": AGENT_REASONS_FILE}
METADATA_KEY = re.compile(r"[a-z][a-zA-Z0-9-_]+")
"""What AIP-193 allows."""


@cache
def reasons_of(package: str) -> dict[str, Reason]:
    """The reasons of a package by name, as their comments have them."""
    return {reason.name: reason for reason in error_reasons(read_contract()[REASONS_FILES[package]])}


def check(promised: Reason, domain: str, errors: Sequence[RichError]) -> None:
    """Compares errors of one reason with its comment. A key with a condition must be in one of them, and not in all."""
    kinds = {(error.domain, error.reason, error.code.name) for error in errors}
    assert kinds == {(domain, promised.name, promised.code)}
    sent = [set(error.metadata) for error in errors]
    assert set.union(*sent) == promised.metadata.keys()
    assert all(METADATA_KEY.fullmatch(key) for key in promised.metadata)
    assert set.intersection(*sent) == {key for key, condition in promised.metadata.items() if not condition}
    assert all(value for error in errors for value in error.metadata.values())
    assert {error.retry_after_seconds is not None for error in errors} == {"RetryInfo" in promised.meaning}
    assert {bool(error.violations) for error in errors} == {"BadRequest" in promised.meaning}


@pytest.mark.parametrize("name", NAME_SERVER_CASES)
def test_a_name_server_sends_what_the_comment_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = asyncio.run(NAME_SERVER_CASES[name](tmp_path, monkeypatch))
    check(reasons_of("namesrv_api")[name], "namesrv.dev", errors)


@pytest.mark.parametrize("name", AGENT_CASES)
def test_an_agent_sends_what_the_comment_promises(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(reasons_of("broker_agent_api")[name], "agent.namesrv.dev", AGENT_CASES[name](tmp_path, monkeypatch))


@pytest.mark.parametrize(("package", "cases"), [("namesrv_api", NAME_SERVER_CASES), ("broker_agent_api", AGENT_CASES)])
def test_every_reason_is_shown_here(package: str, cases: dict[str, Any]) -> None:
    assert cases.keys() == reasons_of(package).keys()


def test_a_name_server_lists_every_bad_field_of_a_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = registration(["A", "bad\ttopic", "A"])
    request.broker.cluster_name = "bad\tname"
    request.broker.broker_addr = "nowhere"
    request.data_version.counter = -1
    request.heartbeat_timeout_millis = -1
    topics = registration(["A", "bad\ttopic", "A"])
    topics.topic_configs[0].perm = 9
    topics.topic_configs[0].read_queue_nums = -1
    refused_calls = refused(("RegisterBroker", request), ("RegisterBroker", topics))
    errors = asyncio.run(refused_calls(tmp_path, monkeypatch))
    assert [[violation.field for violation in error.violations] for error in errors] == [
        ["broker.cluster_name", "broker.broker_addr", "data_version.counter", "heartbeat_timeout_millis"],
        ["topic_configs[0].read_queue_nums", "topic_configs[0].perm", "topic_configs[1].topic"],
    ]


def test_an_agent_lists_every_bad_field_of_a_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = HeartbeatRequest(version="x" * 10_000, producer_groups=[ProducerData(), ProducerData(group_name="g")])
    (error,) = of_clients(("Heartbeat", request))(tmp_path, monkeypatch)
    assert [violation.field for violation in error.violations] == [
        "client_id",
        "version",
        "producer_groups[0].group_name",
    ]
