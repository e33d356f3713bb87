"""Unit tests open no socket and start no process: those that do fail here, and belong to the integration tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

OUTSIDE = {"os.fork", "os.posix_spawn", "os.system", "socket.bind", "socket.connect", "subprocess.Popen"}
"""The interpreter's audit events of what unit tests do not do."""

is_forbidden = False
refused: list[str] = []
"""Events of the test under way. The product may handle the error as its own, so the test fails at its end, too."""


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook, which stays until the interpreter ends."""
    if is_forbidden and event in OUTSIDE:
        refused.append(event)
        raise AssertionError(f"a unit test does {event} with {arguments}")


sys.addaudithook(refuse)


@pytest.fixture(autouse=True)
def no_sockets_and_no_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that leaves this process. gRPC opens its sockets unseen, so its servers are refused."""
    global is_forbidden  # noqa: PLW0603 - an audit hook has no other place

    def no_server(*_: Any, **__: Any) -> None:
        refused.append("grpc.server")
        raise AssertionError("a unit test starts a gRPC server")

    monkeypatch.setattr(grpc, "server", no_server)
    monkeypatch.setattr(grpc.aio, "server", no_server)
    refused.clear()
    is_forbidden = True
    yield
    is_forbidden = False
    assert refused == []
