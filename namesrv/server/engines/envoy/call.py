"""One call: its request from ASGI's receive, its answers to ASGI's send, and the context that gRPC's servicers use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, NoReturn

import grpc

from namesrv.server.engines.envoy.headers import (
    CERTIFICATE_HEADER,
    Metadata,
    headers_of,
    metadata_of,
    peer_of,
    status_headers,
)
from namesrv.server.engines.envoy.identity import names_of
from namesrv.server.engines.envoy.messages import MessageReader, framed

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

CONTENT = [(b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity,deflate,gzip")]
"""Headers of every answer."""

END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not know of it
"""What ``read`` returns after the last message."""

_START: Event = {"type": "http.response.start", "status": 200, "headers": CONTENT, "trailers": True}
_OK_TRAILERS: Event = {"type": "http.response.trailers", "headers": status_headers(grpc.StatusCode.OK, "")}


class Call(grpc.aio.ServicerContext[Any, Any]):
    """A call under way, and its servicer's context.

    Its handler runs in the task that the ASGI server made for it, unless it is answered at once. Whatever ends the call
    early (its deadline, a client that went, the shutdown) cancels that task. What waits for ASGI is shielded: pyvoy
    sets the result of a receive or a send also after it was cancelled, which the event loop would log as an error.
    """

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send, task: asyncio.Task[Any] | None) -> None:
        """Begins it; without a task it is answered at once."""
        self.task = task
        """What answers it."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self.handler: grpc.RpcMethodHandler[Any, Any] | None = None
        """Encodes and decodes its messages."""
        self.reader: MessageReader | None = None
        """Cuts its messages from the request."""
        self._request_ended = self._started = self._done = self._peer_gone = self._asking = False
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._trailing: tuple[tuple[str, str | bytes], ...] = ()
        self._expires: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._sending: asyncio.Future[None] | None = None

    @property
    def unread(self) -> asyncio.Future[None] | None:
        """Done when the client has taken the last message of a stream, or has gone; None if it is already.

        Until then Envoy holds the message and pyvoy keeps the end back, even if the call has ended meanwhile.
        """
        return None if self._sending is None or self._sending.done() else self._sending

    # Methods that the engine calls.

    def set_deadline(self, seconds: float) -> None:
        """Ends the call after this time."""
        loop = asyncio.get_running_loop()
        self._expires = loop.time() + seconds
        self._timer = loop.call_at(
            self._expires, self.end_early, grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"
        )

    def end_early(self, code: grpc.StatusCode, details: str) -> None:
        """Cancels the handler; the client is told the status if it can still be told."""
        if not self._done and self.task is not None:
            self.set_status(code, details)
            self.task.cancel()

    def ask_for_the_peer(self) -> None:
        """Finds out whether the client has gone, and ends the call then.

        ASGI says nothing by itself once a request has come to its end, and answers at once when it is asked. That
        costs two hops between threads.
        """
        if not self._asking and not self._done:
            self._asking = True
            asyncio.ensure_future(self._receive()).add_done_callback(self._peer_told)

    def _peer_told(self, told: asyncio.Future[Event]) -> None:
        self._asking = False
        if told.cancelled() or told.exception() or told.result()["type"] == "http.disconnect":
            self._peer_went()

    def _peer_went(self) -> None:
        self._peer_gone = True
        self.end_early(grpc.StatusCode.CANCELLED, "the client has gone")

    def set_status(self, code: grpc.StatusCode, details: str) -> None:
        """The trailers that tell the client how the call ended."""
        self._code, self._details = code, details

    def finish(self, answer: Any = None) -> None:
        """Sends the answer of a unary call, if it ended well, and the trailers.

        Does not wait. pyvoy takes an event when it is handed over; a reader that reads nothing must not hold us up.
        """
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._peer_gone:
            self._send_end(b"" if answer is None or self._code is not grpc.StatusCode.OK else self._framed(answer))
        for callback in self._callbacks:
            callback(self)

    def _send_end(self, body: bytes) -> None:
        trailers = _OK_TRAILERS
        if self._code is not grpc.StatusCode.OK or self._trailing:
            end = status_headers(self._code, self._details) + headers_of(self._trailing)
            if not self._started and not body:  # all in one frame
                self._send({"type": "http.response.start", "status": 200, "headers": CONTENT + end})
                self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            trailers = {"type": "http.response.trailers", "headers": end}
        if not self._started:
            self._send(_START)
        self._send({"type": "http.response.body", "body": body, "more_body": False})
        self._send(trailers)

    def _framed(self, message: Any) -> bytes:
        encode = self.handler.response_serializer if self.handler is not None else None
        return framed(message if encode is None else encode(message))

    async def requests(self) -> AsyncIterator[Any]:
        """The messages of a request that is a stream."""
        while (message := await self.read()) is not END:
            yield message

    # Methods that servicers call on their context.

    async def read(self) -> Any:
        """The next message of the request; EOF after the last. Raises RefusedRequest."""
        assert self.reader is not None
        while (message := self.reader.next()) is None:
            if self._request_ended:
                return END
            event = await asyncio.shield(self._receive())
            if event["type"] == "http.disconnect":
                self._peer_went()
                await asyncio.sleep(0)  # raises the cancellation
            self._request_ended = not event.get("more_body", False)
            self.reader.feed(event["body"])
        decode = self.handler.request_deserializer if self.handler is not None else None
        return message if decode is None else decode(message)

    async def write(self, message: Any) -> None:
        """Sends one message of a stream. Waits while the client takes nothing, with one message on its way."""
        if not self._started:
            self._started = True
            self._send(_START)
        await self._send_body(self._framed(message))

    async def send_initial_metadata(self, initial_metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Sends metadata before the first message."""
        self._started = True
        self._send({**_START, "headers": CONTENT + headers_of(initial_metadata)})
        await self._send_body(b"")

    async def _send_body(self, body: bytes) -> None:
        event = {"type": "http.response.body", "body": body, "more_body": True}
        self._sending = asyncio.ensure_future(self._send(event))
        try:
            await asyncio.shield(self._sending)
        except OSError:  # what ASGI raises once the client has gone
            self._peer_went()
            await asyncio.sleep(0)  # raises the cancellation

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """Ends the call with an error. Raises AbortError, which nobody but the engine should catch."""
        self.set_status(code, details)
        self._trailing = tuple(trailing_metadata)
        raise grpc.aio.AbortError

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """The same, from a status object."""
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def set_trailing_metadata(self, trailing_metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Metadata that goes with the status."""
        self._trailing = tuple(trailing_metadata)

    def set_code(self, code: grpc.StatusCode) -> None:
        """The status, if the handler returns."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Its text."""
        self._details = details

    def set_compression(self, compression: grpc.Compression) -> None:
        """Nothing: answers are not compressed, which every client takes."""

    def disable_next_message_compression(self) -> None:
        """Nothing: answers are not compressed."""

    def invocation_metadata(self) -> Metadata:  # type: ignore[override]
        """What the client sent."""
        return metadata_of(self._scope["headers"])

    def peer(self) -> str:
        """The client's address, as grpcio writes it."""
        return peer_of(self._scope["client"])

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The names in the client's certificate; nothing without one."""
        forwarded = [value for name, value in self._scope["headers"] if name == CERTIFICATE_HEADER]
        return names_of(forwarded[0]) if forwarded else {}

    def peer_identity_key(self) -> str | None:
        """The key under which ``auth_context`` has the client's identity."""
        return next((key for key in ("peer_uri", "peer_dns", "x509_common_name") if self.auth_context().get(key)), None)

    def peer_identities(self) -> Iterable[bytes] | None:
        """Who the client is."""
        key = self.peer_identity_key()
        return None if key is None else self.auth_context()[key]

    def time_remaining(self) -> float | None:  # type: ignore[override]  # as grpcio does it
        """Seconds until the deadline; None without one."""
        return None if self._expires is None else max(0.0, self._expires - asyncio.get_running_loop().time())

    def trailing_metadata(self) -> Any:
        """The metadata that goes with the status."""
        return self._trailing

    def code(self) -> grpc.StatusCode:
        """The status so far."""
        return self._code

    def details(self) -> str:
        """Its text."""
        return self._details

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls back when the call has ended."""
        self._callbacks.append(callback)

    def cancelled(self) -> bool:
        """Whether the client cancelled it or went."""
        return self._peer_gone

    def done(self) -> bool:
        """Whether it has ended."""
        return self._done
