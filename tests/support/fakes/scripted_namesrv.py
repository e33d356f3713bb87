"""A name server whose answers a test writes, over real gRPC on loopback."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Self

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_data_pb2, route_service_pb2
from namesrv_internal.v1 import diagnostics_service_pb2

from broker_agent.registration import MAX_REGISTRATION_BYTES
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.patience import TIMEOUT

HANG_SECONDS = 60.0
SERVICES: tuple[ServiceDescriptor, ...] = (
    route_service_pb2.DESCRIPTOR.services_by_name["RouteService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    diagnostics_service_pb2.DESCRIPTOR.services_by_name["DiagnosticsService"],
)
"""What programs that read and administer call of a name server."""
REGISTRATION_SERVICE = registration_service_pb2.DESCRIPTOR.services_by_name["RegistrationService"]
OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REGISTRATION_BYTES),
    ("grpc.http2.max_ping_strikes", 0),  # as name servers: pings end no connection
]


def refuse(context: grpc.ServicerContext, error: RichError) -> NoReturn:
    """Ends a call with an error."""
    context.set_trailing_metadata(error.trailers())
    context.abort(error.code, error.message)


class ScriptedNamesrv:
    """Answers the calls of the contract that it has a method for, and remembers what it was asked.

    The method of a call has its name. It takes the request, or the requests of a stream of them, and the context.
    The other calls are UNIMPLEMENTED.
    """

    services: Sequence[ServiceDescriptor] = (*SERVICES, REGISTRATION_SERVICE)

    def __init__(self, name: str = "ns-a", port: int = 0, *, epoch: str = "1", revision: int = 1) -> None:
        self.name, self.epoch, self.revision = name, epoch, revision
        self.asked: defaultdict[str, list[Any]] = defaultdict(list)
        """The requests of each call that takes one, by the name of the call."""
        self.metadata: list[dict[str, str | bytes]] = []
        """That of each call in ``asked``."""
        self.refusal: RichError | None = None
        """Ends every call, if set."""
        self.refuse_next: list[RichError] = []
        """Errors of the next calls of RegistrationService with one answer, one each."""
        self.delay_seconds = 0.0
        """Time until a call with one answer is looked at."""
        self.happened = threading.Condition()
        self._released = threading.Event()
        self._released.set()
        self._port = port
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listens, on the same port as before if it did already."""
        self._pool = ThreadPoolExecutor(32, thread_name_prefix="scripted-namesrv")
        self._server = grpc.server(self._pool, options=OPTIONS)
        for service in self.services:
            handlers = {method.name: self._handler(method) for method in service.methods if self.behaviour_of(method)}
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service.full_name, handlers)])
        self.health = health.HealthServicer()
        self.serve(ready=True)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self.endpoint = Endpoint("127.0.0.1", self._port)
        self._server.start()

    def stop(self) -> None:
        """Ends all calls and stops listening."""
        self.answer_again()
        if self._server is not None:
            assert self._server.stop(0).wait(TIMEOUT)
            self._pool.shutdown()
            self._server = None

    def hang(self) -> None:
        """Gives no answer from now on to a call with one answer; its streams continue."""
        self._released.clear()

    def answer_again(self) -> None:
        self._released.set()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.happened:
            assert self.happened.wait_for(condition, TIMEOUT)

    def header(self, revision: int | None = None) -> route_data_pb2.NamesrvHeader:
        revision = self.revision if revision is None else revision
        return route_data_pb2.NamesrvHeader(namesrv_name=self.name, epoch=self.epoch, revision=revision)

    def behaviour_of(self, method: MethodDescriptor) -> Callable[..., Any] | None:
        """The function that answers a call, or None: it is UNIMPLEMENTED."""
        return getattr(self, method.name, None)

    def serve(self, *, ready: bool) -> None:
        """Says that it is ready for lookups, as it does from its start on, or that it is not."""
        status = health_pb2.HealthCheckResponse
        for service in ("", SERVICES[0].full_name):
            self.health.set(service, status.SERVING if ready else status.NOT_SERVING)

    def encoded(self, answer: Message | bytes) -> bytes:
        """An answer as it is sent."""
        return answer if isinstance(answer, bytes) else answer.SerializeToString()

    def _handler(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        behaviour = self.behaviour_of(method)
        assert behaviour is not None

        def unary(request: Any, context: grpc.ServicerContext) -> Any:
            self._begin(method.name, request, context)
            threading.Event().wait(self.delay_seconds)
            assert self._released.wait(HANG_SECONDS)
            if self.refuse_next and method.containing_service is REGISTRATION_SERVICE:
                refuse(context, self.refuse_next.pop(0))
            return behaviour(request, context)

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            self._begin(method.name, request, context)
            yield from behaviour(request, context)

        of_request = GetMessageClass(method.input_type).FromString
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(behaviour, of_request, self.encoded)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, of_request, self.encoded)
        return grpc.unary_unary_rpc_method_handler(unary, of_request, self.encoded)

    def _begin(self, name: str, request: Any, context: grpc.ServicerContext) -> None:
        with self.happened:
            self.asked[name].append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            self.happened.notify_all()
        if self.refusal is not None:
            refuse(context, self.refusal)
