"""A client written in Rust from protos/ alone, at a real name server."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Built
from tests.interop.programs import INSTALL_SECONDS
from tests.support.programs.processes import NamesrvProcess

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

ADDR = "127.0.0.1:10911"


def test_a_rust_client_registers_looks_up_watches_and_resumes(built: Built, namesrv: NamesrvProcess) -> None:
    done = built("rust").run("walk", str(namesrv.endpoint), "rust-broker", ADDR, "T1", "T2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    lines[11:13] = sorted(lines[11:13])  # the changes of one message have no order
    assert lines == [
        "registered changed=true",
        f"route T1 rust-broker={ADDR}",
        "route T2 none",
        f"change T1 rust-broker={ADDR} ",
        "bookmark",
        "change T2 none ",
        "bookmark",
        "registered changed=true",
        f"change T2 rust-broker={ADDR} ",
        "bookmark",
        "unregistered removed=true",
        *(f"change {topic} none REMOVAL_REASON_UNREGISTERED" for topic in ("T1", "T2")),
        "bookmark",
    ]


def test_a_rust_client_whose_broker_is_refused_exits_with_code_and_text(built: Built, namesrv: NamesrvProcess) -> None:
    done = built("rust").run("walk", str(namesrv.endpoint), "rust\tbroker", ADDR, "T1", "T2")
    assert (done.returncode, done.stderr.startswith("InvalidArgument: broker.broker_name: ")) == (1, True), done.stderr
