from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from structlog.testing import capture_logs

from broker_agent import rpc_errors
from broker_agent.error_codes import CODES
from broker_agent.listener.error_answers import ErrorAnswers
from broker_agent.rpc_errors import CallRefused, InvalidField, LimitExceeded, NotDurable
from groundwork.rich_errors import FieldViolation, RichError
from support.fakes.registering_name_server import DEADLINE
from tests.unit.broker_agent.topic_agents import error_of

Ask = Callable[[str, bytes], RichError]


def refused() -> None:
    raise InvalidField("topic.perm", "is 8, must be from 0 to 7")


def too_much() -> None:
    raise LimitExceeded("topics", 3, 2)


def not_durable() -> None:
    raise NotDurable("disk full")


def defect() -> None:
    raise RuntimeError("the secret is Mellon")


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg] # only generic in its stubs
    """Each error as a call of one answer (its name) and of a stream (its name with a star)."""

    def service(self, details: Any) -> Any:
        name = details.method.removeprefix("/")
        raise_error = {"refused": refused, "too_much": too_much, "not_durable": not_durable, "defect": defect}.get(
            name.rstrip("*")
        )
        if name.endswith("*"):
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._stream(raise_error),
                request_deserializer=pb.GetTopicRequest.FromString,
                response_serializer=bytes,
            )

        def answer(_request: object, context: grpc.ServicerContext) -> bytes:
            if raise_error is None:
                context.abort(grpc.StatusCode.OUT_OF_RANGE, "the servicer's own")
            raise_error()
            return b""

        return grpc.unary_unary_rpc_method_handler(answer, request_deserializer=pb.GetTopicRequest.FromString)

    def _stream(self, raise_error: Any) -> Iterator[bytes]:
        yield b"first"
        raise_error()


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    pool = ThreadPoolExecutor(4, thread_name_prefix="errors-server")
    server = grpc.server(pool, handlers=[_Handlers()], interceptors=[ErrorAnswers()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

        def call(name: str, request: bytes) -> RichError:
            if name.endswith("*"):
                ask_once: Any = channel.unary_stream(f"/{name}", bytes, bytes)
                return error_of(lambda: list(ask_once(request, timeout=DEADLINE)))
            ask_once = channel.unary_unary(f"/{name}", bytes, bytes)
            return error_of(lambda: ask_once(request, timeout=DEADLINE))

        yield call
    assert server.stop(0).wait(DEADLINE)
    pool.shutdown()


@pytest.mark.parametrize("star", ["", "*"])
def test_an_error_comes_with_code_reason_domain_and_the_field_that_is_wrong(ask: Ask, star: str) -> None:
    error = ask("refused" + star, b"")
    assert (error.code, error.reason, error.domain) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "broker-agent",
    )
    assert error.message == "topic.perm: is 8, must be from 0 to 7"
    assert error.violations == (FieldViolation("topic.perm", "is 8, must be from 0 to 7"),)


def test_an_exceeded_limit_names_value_and_limit(ask: Ask) -> None:
    error = ask("too_much", b"")
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
    assert error.metadata == {"name": "topics", "value": "3", "limit": "2"}


def test_an_error_that_may_pass_says_when_to_try_again(ask: Ask) -> None:
    error = ask("not_durable", b"")
    assert (error.code, error.retry_after_seconds) == (grpc.StatusCode.UNAVAILABLE, 1.0)


@pytest.mark.parametrize("star", ["", "*"])
def test_a_defect_tells_the_caller_an_id_and_only_the_log_the_text(ask: Ask, star: str) -> None:
    with capture_logs() as logs:
        error = ask("defect" + star, b"")
    assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL_DEFECT")
    assert "Mellon" not in str(error)
    assert [(line["event"], line["error_id"], str(line["exc_info"])) for line in logs] == [
        ("defect", error.metadata["error_id"], "the secret is Mellon")
    ]


@pytest.mark.parametrize("star", ["", "*"])
def test_bytes_that_are_no_message_are_the_callers_error(ask: Ask, star: str) -> None:
    error = ask("refused" + star, b"\xff\xff")
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")


def test_a_call_that_its_servicer_ended_itself_stays_as_it_ended(ask: Ask) -> None:
    with capture_logs() as logs:
        error = ask("aborted", b"")
    assert (error.code, error.message) == (grpc.StatusCode.OUT_OF_RANGE, "the servicer's own")
    assert logs == []


def test_every_error_has_a_code_and_a_reason_of_its_own() -> None:
    kinds = {
        kind
        for kind in vars(rpc_errors).values()
        if isinstance(kind, type) and issubclass(kind, CallRefused) and kind is not CallRefused
    }
    assert set(CODES) == kinds
    reasons = [reason for _, reason in CODES.values()]
    assert len(set(reasons)) == len(reasons) >= 16
