"""The context of a call that no connection brought."""

from __future__ import annotations

from typing import cast

from namesrv_common.server.rpc_handlers import Context


class Caller:
    """All that servicers ask a context for."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:50000"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


CONTEXT = cast("Context", Caller())
