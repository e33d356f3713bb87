"""The contexts of calls that no connection or engine brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

from google.protobuf.message import Message

from namesrv.engines.api import Again, EngineCall
from namesrv_common.server.rpc_handlers import Context


class Caller:
    """All that servicers ask a context for."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:50000"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


CONTEXT = cast("Context", Caller())


class FakeEngineCall(EngineCall):
    """Keeps how the call is answered when it comes again. Tests replace the rest."""

    is_free = True
    doubt = None
    again: Again | None = None

    def may_keep(self, request: Message, dependencies: Sequence[str]) -> None:
        """Ignores the dependencies."""

    def may_repeat(self, again: Again) -> None:
        self.again = again

    def write_to_all(self, streams: Sequence[Self], message: bytes) -> None:
        raise AssertionError("no stream is written to here")
