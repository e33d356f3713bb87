"""The role of one of several processes of a name server (``--workers``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """Which of the processes it is, and the socket where they meet."""

    socket: str
    """Unix socket on which the owner of the tables listens for the others."""
    owns_tables: bool
    """Whether this one owns the tables; the others follow it."""

    @property
    def target(self) -> str:
        """The socket as gRPC names it."""
        return f"unix:{self.socket}"
