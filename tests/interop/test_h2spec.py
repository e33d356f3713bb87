"""The native engine compared with RFC 9113 and RFC 7541, by h2spec."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.interop.programs import GO_ENVIRONMENT, INSTALL_SECONDS, require, run
from tests.support.programs.processes import NamesrvProcess
from tests.support.secured.fleet import Place

H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
RUN_SECONDS = 120
CALL = "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="session")
def h2spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    folder = tmp_path_factory.mktemp("h2spec")
    run([require("go"), "install", H2SPEC], folder, GO_ENVIRONMENT | {"GOBIN": str(folder)})
    return folder / "h2spec"


@pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS)
@pytest.mark.parametrize("tls", [False, True])
def test_native_breaks_no_rule_of_http_2(h2spec: Path, tls: bool, tmp_path: Path) -> None:
    flags = Place.make(tmp_path).flags("TLS", with_permits=False) if tls else ()
    with NamesrvProcess(*flags) as namesrv:
        host, port = namesrv.endpoint
        command = [str(h2spec), "-h", host, "-p", str(port), "-P", CALL, "-o", "10", *(["-t", "-k"] if tls else [])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    passed = re.search(r"(\d+) tests, (\d+) passed, 0 skipped, 0 failed", done.stdout)
    assert passed, done.stdout[done.stdout.find("Failures:") :]
    assert passed[1] == passed[2]
