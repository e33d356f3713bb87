"""What the doctor finds in fleets in each state, its exit code, and that the commands of the runbook run there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from grpc import StatusCode

from docs.tools.generate_states import examine
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError
from nsctl.findings import Code, Severity
from nsctl.session import FOUND, USAGE, WARNED, check_silence
from tests.support.fleet_states import STATES, State

UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL = StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.INTERNAL
CONNECTING = "failed to connect to all addresses; last error: "


@pytest.mark.parametrize(
    ("error", "code", "what"),
    [
        (RichError(UNAVAILABLE, "refused"), Code.UNREACHABLE, "cannot be reached: UNAVAILABLE: refused"),
        (RichError(DEADLINE_EXCEEDED, ""), Code.UNREACHABLE, "did not answer within 5 s"),
        (RichError(INTERNAL, "", "INTERNAL_DEFECT"), Code.SERVER_ERROR, "it answers with an error: INTERNAL"),
        (RichError(UNAVAILABLE, "", "SHUTTING_DOWN"), Code.SERVER_ERROR, "it answers with an error: UNAVAILABLE"),
        (RichError(UNAVAILABLE, f"{CONNECTING}Tls handshake failed"), Code.TLS_REFUSED, "the TLS handshake failed"),
        (RichError(UNAVAILABLE, f"{CONNECTING}certificate has expired"), Code.CERTIFICATE_ENDED, "has ended"),
        (RichError(UNAVAILABLE, f"{CONNECTING}Failed parsing HTTP/2"), Code.WRONG_PORT, "something else than gRPC"),
    ],
)
def test_a_silent_server_is_told_with_its_cause(error: RichError, code: Code, what: str) -> None:
    finding = check_silence(CallError(Endpoint("127.0.0.1", 1), error), 5.0)
    assert finding.code is code
    assert what in finding.what


EXIT_CODES = {Severity.PROBLEM: FOUND, Severity.WARNING: WARNED, Severity.INFO: 0}


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.title)
def test_the_doctor_finds_the_state_and_the_runbooks_commands_run(state: State, tmp_path: Path) -> None:
    with state.enter(tmp_path) as scene:
        doctor, *others = examine(state, scene)
    found = set(re.findall(r"[A-Z_]+", doctor.output)) & {code.name for code in Code}
    assert state.codes <= found
    assert doctor.exit_code == EXIT_CODES[min((Code[code].severity for code in found), default=Severity.INFO)]
    assert [told for told in others if told.exit_code == USAGE] == []


def test_each_code_has_a_state() -> None:
    assert set().union(*(state.codes for state in STATES)) == {code.name for code in Code}
