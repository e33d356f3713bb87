"""What the doctor finds in fleets in each state, its exit code, and that the commands of the runbook run there."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from grpc import StatusCode

from docs.tools.generate_states import examine
from namesrv_common.client.channels import ClientFiles
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError
from nsctl.commands.doctor import check_silence
from nsctl.commands.findings import Code, Severity
from nsctl.session import FOUND, USAGE, WARNED
from tests.support.fleet_states import STATES, State
from tests.support.programs.nsctl_runs import examined, run
from tests.support.programs.processes import NamesrvProcess


def test_a_plain_name_server_that_hangs_is_not_called_with_tls() -> None:
    with NamesrvProcess() as namesrv:
        namesrv.signal(signal.SIGSTOP)
        code, [row] = examined(namesrv.endpoint, "--timeout", "1")
        namesrv.signal(signal.SIGCONT)
        assert (code, row["code"], row["what"]) == (FOUND, "UNREACHABLE", "did not answer within 1 s")
        run("status", "--namesrv", namesrv.endpoint)
        assert not namesrv.events("client_speaks_tls")


UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL = StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.INTERNAL
HANDSHAKE = "failed to connect to all addresses; last error: Tls handshake failed: "
CA, PAIR = ClientFiles(Path("ca.pem")), ClientFiles(Path("ca.pem"), Path("cert.pem"), Path("key.pem"))


@pytest.mark.parametrize(
    ("error", "files", "code", "what"),
    [
        (RichError(UNAVAILABLE, "refused"), None, Code.UNREACHABLE, "cannot be reached: UNAVAILABLE: refused"),
        (RichError(DEADLINE_EXCEEDED, ""), None, Code.UNREACHABLE, "did not answer within 5 s"),
        (RichError(INTERNAL, "", "INTERNAL_DEFECT"), None, Code.SERVER_ERROR, "it answers with an error: INTERNAL"),
        (RichError(UNAVAILABLE, f"{HANDSHAKE}odd"), CA, Code.TLS_REFUSED, "the TLS handshake failed"),
        (RichError(UNAVAILABLE, f"{HANDSHAKE}WRONG_VERSION_NUMBER"), CA, Code.TLS_REFUSED, "it speaks no TLS"),
        (RichError(UNAVAILABLE, f"{HANDSHAKE}certificate has expired"), CA, Code.CERTIFICATE_ENDED, "has ended"),
        (RichError(UNAVAILABLE, f"{HANDSHAKE}certificate is not yet valid"), CA, Code.TLS_REFUSED, "not valid yet"),
        (RichError(UNAVAILABLE, f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED"), CA, Code.TLS_REFUSED, "is of an authority"),
        (RichError(UNAVAILABLE, "Hostname Verification Check failed"), CA, Code.TLS_REFUSED, "is for other names"),
        (RichError(UNAVAILABLE, "Unwrap failed (TSI_DATA_CORRUPTED)"), CA, Code.TLS_REFUSED, "none was shown"),
        (RichError(UNAVAILABLE, "Unwrap failed (TSI_DATA_CORRUPTED)"), PAIR, Code.TLS_REFUSED, "it refuses"),
    ],
)
def test_a_silent_server_is_told_with_its_cause(
    error: RichError, files: ClientFiles | None, code: Code, what: str
) -> None:
    finding = check_silence(CallError(Endpoint("127.0.0.1", 1), error), files, 5.0)
    assert finding.code is code
    assert what in finding.what


EXIT_CODES = {Severity.PROBLEM: FOUND, Severity.WARNING: WARNED, Severity.INFO: 0}


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.title)
def test_the_doctor_finds_the_state_and_the_runbooks_commands_run(state: State, tmp_path: Path) -> None:
    with state.enter(tmp_path) as scene:
        doctor, *others = examine(state, scene)
    found = set(re.findall(r"[A-Z_]+", doctor.output)) & {code.name for code in Code}
    assert set(state.codes) <= found
    assert doctor.exit_code == EXIT_CODES[min((Code[code].severity for code in found), default=Severity.INFO)]
    assert [told for told in others if told.exit_code == USAGE] == []


def test_each_code_has_a_state() -> None:
    assert {Code[code] for state in STATES for code in state.codes} == set(Code)
