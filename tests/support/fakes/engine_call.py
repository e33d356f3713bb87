"""A call's context as an engine makes it, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from google.protobuf.message import Message

from namesrv.engines.api import Again, EngineCall


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
