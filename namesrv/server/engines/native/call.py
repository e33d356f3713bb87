"""One call: what servicers ask of their context, and what the engine is told for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import grpc
import namesrv_engine

from namesrv.server.engines.native.identity import names_of
from namesrv.server.engines.native.metadata import Metadata, fields_of, metadata_of
from namesrv.server.rpc.repeated_calls import Again

END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not know of it
"""What ``read`` returns after the last message."""

_OK = grpc.StatusCode.OK


class Wire(Protocol):
    """Where the commands for calls go."""

    engine: namesrv_engine.Engine

    @property
    def generation(self) -> int:
        """Of the tables: how often they have changed, as the engine counts."""

    def flush_soon(self) -> None:
        """Has what was told to the engine reach it before the event loop waits."""

    def answered(self, call: Call, message: bytes) -> None:
        """A call was answered with this message, and what the message rests on is known."""

    def learned(self, call: Call, again: Again) -> None:
        """A call was answered well, and it is known how to answer it when it comes again."""

    def refused(self, call: Call) -> None:
        """A call was ended with a status, and what the status rests on is known."""


class Call(grpc.aio.ServicerContext[Any, Any]):
    """A call under way, and its servicer's context.

    One message of a stream may be on its way to the client while the next one is made; the one after that waits.
    """

    # Here and not in __init__: few calls have any of them, and each would cost every call.
    task: asyncio.Task[None] | None = None
    """What answers it; None if it is answered at once."""
    rests_on: tuple[Sequence[str], int] | None = None
    """What its answer rests on, by tags, and the generation that it is computed at. None: it is not to be kept."""
    again: Again | None = None
    """Answers the same call when it comes again. None: it is looked at as a whole each time."""
    _begun = _done = _gone = _stuck = _writing = False
    _code, _details = _OK, ""
    _initial: tuple[tuple[str, str | bytes], ...] = ()
    _trailing: tuple[tuple[str, str | bytes], ...] = ()
    _callbacks: tuple[Callable[[Any], None], ...] = ()
    _taken: asyncio.Future[None] | None = None
    _message: asyncio.Future[bytes | None] | None = None

    def __init__(self, wire: Wire, call: namesrv_engine.Call, handler: grpc.RpcMethodHandler[Any, Any]) -> None:
        self.call = call
        """What the engine knows of it."""
        self.handler = handler
        """Encodes and decodes its messages."""
        self._wire = wire

    # What the engine tells.

    def went(self) -> None:
        """The client has gone, or the deadline has passed."""
        self._gone = True
        self.end_early(grpc.StatusCode.CANCELLED, "the client has gone")

    def end_early(self, code: grpc.StatusCode, details: str) -> None:
        """Cancels the handler; the client is told the status if it can still be told."""
        if not self._done and self.task is not None:
            self.set_status(code, details)
            self.task.cancel()

    def writable(self) -> None:
        """The client has taken the last message."""
        self._writing = False
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)

    def received(self, message: bytes | None) -> None:
        """A message of the request came; None: there is no other."""
        if self._message is not None and not self._message.done():
            self._message.set_result(message)

    # What the server does with it.

    def set_status(self, code: grpc.StatusCode, details: str) -> None:
        """What the client is told at the end."""
        self._code, self._details = code, details

    def request(self) -> Any:
        """The only message of the request, or all of them."""
        if self.handler.request_streaming:
            return self._requests()
        return self._decoded(self.call.request)

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not END:
            yield message

    def finish(self, answer: Any = None) -> None:
        """Sends the answer of a unary call, if it ended well, and how it ended."""
        self._done = True
        if not self._gone:
            engine, number = self._wire.engine, self.call.id
            if self._code is _OK and answer is not None:
                message = self._encoded(answer)
                if self._begun or self._initial or self._trailing:
                    self._begin()
                    engine.write(number, message)
                    engine.finish(number, 0, "", fields_of(self._trailing))
                else:
                    engine.answer(number, message)
                    if self.rests_on is not None:
                        self._wire.answered(self, message)
                    if self.again is not None:
                        self._wire.learned(self, self.again)
            else:
                code: int = self._code.value[0]
                engine.finish(number, code, self._details, fields_of(self._trailing), cut=self._stuck)
                if self.rests_on is not None:
                    self._wire.refused(self)
            self._wire.flush_soon()
        for callback in self._callbacks:
            callback(self)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            if self._initial:
                self._wire.engine.begin(self.call.id, fields_of(self._initial))

    def _encoded(self, message: Any) -> bytes:
        encode: Any = self.handler.response_serializer
        encoded: bytes = message if encode is None else encode(message)
        return encoded

    def _decoded(self, message: bytes | None) -> Any:
        decode: Any = self.handler.request_deserializer
        return message if decode is None else decode(message)

    # What servicers ask of their context.

    def may_keep(self, tags: Sequence[str]) -> None:
        """The answer, which is computed in this very step, rests on these tags and on nothing else."""
        self.rests_on = (tags, self._wire.generation)

    def may_repeat(self, again: Again) -> None:
        """This is how the same call is answered when it comes again."""
        self.again = again

    async def read(self) -> Any:
        """The next message of the request; EOF after the last."""
        self._message = asyncio.get_running_loop().create_future()
        self._wire.engine.read(self.call.id)
        self._wire.flush_soon()
        message = await self._message
        return END if message is None else self._decoded(message)

    async def write(self, message: Any) -> None:
        """Sends one message of a stream. Waits while the client has not taken the one before."""
        if self._writing:
            self._taken = asyncio.get_running_loop().create_future()
            self._stuck = True
            await self._taken
            self._stuck = False
        self._begin()
        self._writing = True
        self._wire.engine.write(self.call.id, self._encoded(message))
        self._wire.flush_soon()

    @property
    def is_free(self) -> bool:
        """Whether the client has taken the last message of the stream, so that another one can leave at once."""
        return self._begun and not (self._writing or self._gone or self._done)

    def write_to_all(self, streams: Sequence[Call], message: bytes) -> None:
        """Sends one message to streams that are free: one step for all of them."""
        for stream in streams:
            stream._writing = True  # noqa: SLF001 - it is one of us
        self._wire.engine.write_all([stream.call.id for stream in streams], message)
        self._wire.flush_soon()

    async def send_initial_metadata(self, initial_metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Sends metadata before the first message."""
        self._initial = tuple(initial_metadata)
        self._begun = True
        self._wire.engine.begin(self.call.id, fields_of(self._initial))
        self._wire.flush_soon()

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
        return metadata_of(self.call.metadata())

    def peer(self) -> str:
        """The client's address, as grpcio writes it."""
        return self.call.peer

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The names in the client's certificate; nothing without one."""
        certificate = self.call.certificate
        return {} if certificate is None else names_of(certificate)

    def peer_identity_key(self) -> str | None:
        """Under which key ``auth_context`` has who the client is."""
        return next((key for key in ("peer_uri", "peer_dns", "x509_common_name") if self.auth_context().get(key)), None)

    def peer_identities(self) -> Iterable[bytes] | None:
        """Who the client is."""
        key = self.peer_identity_key()
        return None if key is None else self.auth_context()[key]

    def time_remaining(self) -> float | None:  # type: ignore[override]  # as grpcio does it
        """Seconds until the deadline; None without one."""
        return self.call.time_remaining

    def trailing_metadata(self) -> Any:
        """What goes with the status."""
        return self._trailing

    def code(self) -> grpc.StatusCode:
        """The status so far."""
        return self._code

    def details(self) -> str:
        """Its text."""
        return self._details

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls back when the call has ended."""
        self._callbacks = (*self._callbacks, callback)

    def cancelled(self) -> bool:
        """Whether the client cancelled it or went, or its deadline has passed."""
        return self._gone

    def done(self) -> bool:
        """Whether it has ended."""
        return self._done
