"""Threads that look up and watch during a run, and continue over a new connection when they have lost one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import grpc
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.grpc_errors import RichError
from tests.faults.history import History, as_json
from tests.support.programs.processes import Client, eventually

TIMEOUT = 3.0
"""Deadline of a lookup, seconds."""
WATCH_SECONDS = 600.0
"""Longest life of one watch; the next one continues where it ended."""
RECONNECT_SECONDS = 0.1

Connect = Callable[[], AbstractContextManager[Client]]


class Worker:
    """A thread that calls one name server until the end. What goes wrong with calls is recorded, not raised."""

    def __init__(self, name: str, server: str, connect: Connect, history: History) -> None:
        self.name = name
        self.server = server
        self.history = history
        self.ending = threading.Event()
        self.defect: BaseException | None = None
        """What ended the thread too early."""
        self._connect = connect
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name=f"{name} at {server}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        eventually(self._has_ended)

    def work(self, client: Client) -> None:
        """Calls until the end, or until a call fails with what says that the connection is lost."""
        raise NotImplementedError

    def hold(self, call: Any) -> Any:
        """Notes the stream that is open, so that it can be ended from outside."""
        self._call = call
        return call

    def failed(self, error: RichError) -> None:
        """A call failed."""
        self.history.add("failed", who=self.name, server=self.server, code=error.code.name, reason=error.reason)

    def _has_ended(self) -> bool:
        if self._call is not None:
            self._call.cancel()
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self.ending.wait(RECONNECT_SECONDS):
                with self._connect() as client:
                    try:
                        self.work(client)
                    except grpc.RpcError as error:
                        if not self.ending.is_set():
                            self.failed(RichError.of(error))
        except BaseException as defect:
            self.defect = defect
            raise


class Lookups(Worker):
    """Looks the same topics up, again and again. An answer like the one before is recorded without its content."""

    def __init__(
        self, server: str, connect: Connect, history: History, topics: Sequence[str], pause_seconds: float
    ) -> None:
        super().__init__("lookups", server, connect, history)
        self._request = pb.BatchGetTopicRoutesRequest(topics=topics)
        self.answers = 0
        """How many are recorded."""
        self._pause_seconds = pause_seconds
        self._before: pb.BatchGetTopicRoutesResponse | None = None

    def work(self, client: Client) -> None:
        """Looks up."""
        while not self.ending.wait(self._pause_seconds):
            began = self.history.now()
            answer = client.routes.BatchGetTopicRoutes(self._request, timeout=TIMEOUT)
            content = {"again": True} if answer == self._before else {"answer": as_json(answer)}
            self.history.add("lookup", server=self.server, began=began, **content)
            self._before = answer
            self.answers += 1


class Watcher(Worker):
    """Watches, and continues after its last bookmark, or anew when the epoch has changed."""

    def __init__(
        self,
        name: str,
        server: str,
        connect: Connect,
        history: History,
        topics: Sequence[str],
        prefixes: Sequence[str] = (),
    ) -> None:
        super().__init__(name, server, connect, history)
        self._asked = pb.WatchTopicRoutesRequest(topics=topics, topic_prefixes=prefixes)
        self._bookmark: tuple[str, int] | None = None
        self._streams = 0

    def work(self, client: Client) -> None:
        """Opens a stream and reads it to its end."""
        request = pb.WatchTopicRoutesRequest()
        request.CopyFrom(self._asked)
        if self._bookmark is not None:
            request.resume_after.epoch, request.resume_after.revision = self._bookmark
        self._streams += 1
        self._note("opened", request=as_json(request))
        for message in self.hold(client.routes.WatchTopicRoutes(iter([request]), timeout=WATCH_SECONDS)):
            self._note("message", message=as_json(message))
            if message.bookmark:
                self._bookmark = message.header.epoch, message.header.revision

    def failed(self, error: RichError) -> None:
        """A stream ended."""
        super().failed(error)
        if error.reason in {"EPOCH_CHANGED", "REVISION_COMPACTED"}:
            self._bookmark = None

    def _note(self, event: str, **fields: object) -> None:
        self.history.add("watch", watcher=self.name, server=self.server, stream=self._streams, event=event, **fields)
