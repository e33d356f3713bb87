"""What the comments of error_reason.proto promise is what the programs send: code, metadata, when to try again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs.tools.generate_clients import AGENT_REASONS_FILE, REASONS_FILE, Reason, error_reasons, read_contract
from groundwork.grpc_errors import RichError
from tests.integration.error_reasons.from_agents import AGENT_CASES
from tests.integration.error_reasons.from_name_servers import NAME_SERVER_CASES

REASONS_FILES = {"namesrv_api": REASONS_FILE, "broker_agent_api": AGENT_REASONS_FILE}
NOT_SENT = "No call sends it yet."
WITHOUT_CAUSE = {"LIST_DISABLED"}
"""Reasons of the contract that no setting and no call of a name server causes."""


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
    assert set.intersection(*sent) == {key for key, condition in promised.metadata.items() if not condition}
    assert all(value for error in errors for value in error.metadata.values())
    assert {error.retry_after_seconds is not None for error in errors} == {"RetryInfo" in promised.meaning}
    assert {bool(error.violations) for error in errors} == {"BadRequest" in promised.meaning}


@pytest.mark.parametrize("name", NAME_SERVER_CASES)
def test_a_name_server_sends_what_the_comment_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = asyncio.run(NAME_SERVER_CASES[name](tmp_path, monkeypatch))
    check(reasons_of("namesrv_api")[name], "namesrv", errors)


@pytest.mark.parametrize("name", AGENT_CASES)
def test_an_agent_sends_what_the_comment_promises(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(reasons_of("broker_agent_api")[name], "broker-agent", AGENT_CASES[name](tmp_path, monkeypatch))


@pytest.mark.parametrize(("package", "cases"), [("namesrv_api", NAME_SERVER_CASES), ("broker_agent_api", AGENT_CASES)])
def test_every_reason_is_shown_here_unless_its_comment_says_that_no_call_sends_it(
    package: str, cases: dict[str, Any]
) -> None:
    sent = {name for name, promised in reasons_of(package).items() if not promised.meaning.startswith(NOT_SENT)}
    assert cases.keys() == sent - WITHOUT_CAUSE
