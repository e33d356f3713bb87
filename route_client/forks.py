"""Clients in forked processes: threads and connections stay in the parent.

gRPC does not work in a process that was forked after gRPC ran: calls hang, or the process crashes (grpc/grpc issue
32992). So a child can use no client of its parent, and cannot make one if its parent had one. ForkedProcessError says
so. A process that ``spawn`` or ``forkserver`` starts has no such parent.
"""

from __future__ import annotations

import gc
import logging
import os
import weakref

from route_client import fork_handlers
from route_client.errors import ForkedProcessError

_ADVICE = "start processes with spawn or forkserver, or make the first client after the fork"

_log = logging.getLogger(__name__)


class _Process:
    """This process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ran_grpc_in: int | None = None
        """The id of the process in which the first client was made, this one or one that it was forked from."""
        self.clients = weakref.WeakSet[object]()
        self.inherited: list[object] = []
        """The parent's clients."""

    def will_fork(self) -> None:
        """Runs in the parent, before the fork."""
        if self.ran_grpc_in is not None and not fork_handlers.ARE_OFF:
            _log.warning(
                "a process that has used a route client forks, and gRPC's fork handlers may crash the child: import "
                "route_client before grpc, and leave %s unset",
                fork_handlers.VARIABLE,
            )

    def is_forked(self) -> None:
        """Runs in a child, right after the fork.

        A child that frees an object of gRPC waits for a thread of its parent without end, or crashes. So it keeps them
        all: in a list that refers to itself, which not even the end of the interpreter frees, and by not collecting
        what the parent left behind.
        """
        self.pid = os.getpid()
        if self.ran_grpc_in is not None:
            self.inherited += [self.inherited, *self.clients]
            gc.freeze()


_process = _Process()
os.register_at_fork(before=_process.will_fork, after_in_child=_process.is_forked)


class Owner:
    """The process that made a client, the only one that may use it."""

    __slots__ = ("_pid",)

    def __init__(self, client: object) -> None:
        """Takes a client that this process makes.

        Raises:
            ForkedProcessError: This process was forked from one that had made a client.
        """
        if _process.ran_grpc_in is None:
            _process.ran_grpc_in = _process.pid
        elif _process.ran_grpc_in != _process.pid:
            raise ForkedProcessError(
                f"gRPC does not work in process {_process.pid}: process {_process.ran_grpc_in} had made a client "
                f"before it was forked; {_ADVICE}"
            )
        self._pid = _process.pid
        _process.clients.add(client)

    @property
    def is_this_process(self) -> bool:
        """Whether this process made the client."""
        return self._pid == _process.pid

    def check(self) -> None:
        """Raises ForkedProcessError in a process that was forked from the owner."""
        if self._pid != _process.pid:
            raise ForkedProcessError(
                f"this client belongs to process {self._pid} and cannot be used in process {_process.pid}, which was "
                f"forked from it; {_ADVICE}"
            )
