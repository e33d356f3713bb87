"""Connections that are renewed when their credentials change, which gRPC's own cannot do.

A call goes over the connection of the credentials in force when it begins. A call under way, such as a long stream,
stays on its connection; an outdated connection is closed when its last call has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import grpc

ChannelT = TypeVar("ChannelT")


class _Connection(Generic[ChannelT]):
    """One connection, and its calls under way."""

    def __init__(self, generation: int, channel: ChannelT) -> None:
        self.generation = generation
        self.channel = channel
        self.calls = 0


class _Connections(Generic[ChannelT]):
    """The connection in force, and those before it that still have calls. Thread-safe."""

    def __init__(
        self,
        connect: Callable[[], tuple[int, ChannelT]],
        generation: Callable[[], int],
        close: Callable[[ChannelT], None],
    ) -> None:
        self._connect = connect
        self._generation = generation
        self._close = close
        self._lock = threading.Lock()
        self.current = _Connection(*connect())
        self._retired: list[_Connection[ChannelT]] = []
        self._closed = False

    def begin(self) -> _Connection[ChannelT]:
        """The connection for a call that begins; ``end`` must follow."""
        generation = self._generation()
        with self._lock:
            if generation != self.current.generation and not self._closed:
                self._retired.append(self.current)
                self.current = _Connection(*self._connect())
            connection = self.current
            connection.calls += 1
            idle = [retired for retired in self._retired if not retired.calls]
            if idle:
                self._retired = [retired for retired in self._retired if retired.calls]
        # Not where a call ends: that may happen on a thread of that connection, which cannot close itself.
        for retired in idle:
            self._close(retired.channel)
        return connection

    def end(self, connection: _Connection[ChannelT]) -> None:
        """A call has ended."""
        with self._lock:
            connection.calls -= 1

    def take_all(self) -> list[ChannelT]:
        """All connections, to be closed; no others are made any more."""
        with self._lock:
            self._closed = True
            retired, self._retired = self._retired, []
            return [*(connection.channel for connection in retired), self.current.channel]


class _Calls:
    """A call of the contract, on whichever connection is in force."""

    def __init__(self, connections: _Connections[Any], make: Callable[[Any], Any]) -> None:
        self._connections = connections
        self._make = make
        self._made: tuple[_Connection[Any] | None, Any] = (None, None)

    def _begin(self) -> tuple[_Connection[Any], Any]:
        connection = self._connections.begin()
        made_for, calls = self._made
        if made_for is not connection:
            calls = self._make(connection.channel)
            self._made = (connection, calls)
        return connection, calls


class _BlockingCalls(_Calls):
    """Unary answers: the caller waits, or gets a future."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        connection, calls = self._begin()
        try:
            return calls(*args, **kwargs)
        finally:
            self._connections.end(connection)

    def with_call(self, *args: Any, **kwargs: Any) -> Any:
        connection, calls = self._begin()
        try:
            return calls.with_call(*args, **kwargs)
        finally:
            self._connections.end(connection)

    def future(self, *args: Any, **kwargs: Any) -> Any:
        connection, calls = self._begin()
        return _tracked(self._connections, connection, lambda: calls.future(*args, **kwargs))


class _StreamingCalls(_Calls):
    """Streamed answers: the caller gets the call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        connection, calls = self._begin()
        return _tracked(self._connections, connection, lambda: calls(*args, **kwargs))


class _AioCalls(_Calls):
    """All kinds of calls of an event loop."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        connection, calls = self._begin()
        try:
            call = calls(*args, **kwargs)
        except BaseException:
            self._connections.end(connection)
            raise
        call.add_done_callback(lambda _: self._connections.end(connection))
        return call


def _tracked(connections: _Connections[Any], connection: _Connection[Any], start: Callable[[], Any]) -> Any:
    try:
        call = start()
    except BaseException:
        connections.end(connection)
        raise
    if not call.add_callback(lambda: connections.end(connection)):  # it has ended already
        connections.end(connection)
    return call


class RenewedChannel(grpc.Channel):
    """A ``grpc.Channel`` whose credentials may change."""

    def __init__(self, connect: Callable[[], tuple[int, grpc.Channel]], generation: Callable[[], int]) -> None:
        """Takes how a connection is made, with the generation of its credentials, and which generation is in force."""
        self._connections: _Connections[grpc.Channel] = _Connections(connect, generation, lambda old: old.close())

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        """Tells of the state of the connection that is in force now, and of no later one's."""
        self._connections.current.channel.subscribe(callback, try_to_connect or False)

    def unsubscribe(self, callback: Any) -> None:
        """Ends a subscription."""
        self._connections.current.channel.unsubscribe(callback)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """As gRPC says."""
        return _BlockingCalls(self._connections, lambda channel: channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """As gRPC says."""
        return _StreamingCalls(self._connections, lambda channel: channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """As gRPC says."""
        return _BlockingCalls(self._connections, lambda channel: channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """As gRPC says."""
        return _StreamingCalls(self._connections, lambda channel: channel.stream_stream(*args, **kwargs))

    def close(self) -> None:
        """Closes all connections and ends their calls."""
        for channel in self._connections.take_all():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RenewedAioChannel(grpc.aio.Channel):
    """A ``grpc.aio.Channel`` whose credentials may change. Belongs to the event loop that it was made in."""

    def __init__(self, connect: Callable[[], tuple[int, grpc.aio.Channel]], generation: Callable[[], int]) -> None:
        """Takes how a connection is made, with the generation of its credentials, and which generation is in force."""
        self._closing: set[asyncio.Task[None]] = set()
        self._connections: _Connections[grpc.aio.Channel] = _Connections(connect, generation, self._close_retired)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """As gRPC says."""
        return _AioCalls(self._connections, lambda channel: channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """As gRPC says."""
        return _AioCalls(self._connections, lambda channel: channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """As gRPC says."""
        return _AioCalls(self._connections, lambda channel: channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """As gRPC says."""
        return _AioCalls(self._connections, lambda channel: channel.stream_stream(*args, **kwargs))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """The state of the connection in force."""
        return self._connections.current.channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the connection that is in force now has another state."""
        await self._connections.current.channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the connection that is in force now is made."""
        await self._connections.current.channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Closes all connections; their calls may take so many seconds more."""
        await asyncio.gather(*self._closing, *(channel.close(grace) for channel in self._connections.take_all()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _close_retired(self, channel: grpc.aio.Channel) -> None:
        async def close() -> None:
            await channel.close(None)

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
