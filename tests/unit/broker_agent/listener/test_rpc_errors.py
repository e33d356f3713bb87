from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from structlog.testing import capture_logs

from broker_agent import errors
from broker_agent.errors import CODES, CallRefused, InvalidField, LimitExceeded, NotDurable
from broker_agent.listener import AgentServer
from broker_agent.topics.topic_service import SERVICE
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import FieldViolation, RichError
from tests.support.fakes.registering_name_server import DEADLINE
from tests.unit.broker_agent.topic_agents import error_of

Ask = Callable[[bytes], RichError]


def refused() -> None:
    raise InvalidField("topic.perm", "is 8, must be from 0 to 7")


def too_much() -> None:
    raise LimitExceeded("topics", 3, 2)


def not_durable() -> None:
    raise NotDurable("disk full")


def defect() -> None:
    raise RuntimeError("the secret is Mellon")


class _Part:
    """Answers a lookup of a topic with the error of its name."""

    def GetTopic(self, request: pb.GetTopicRequest, _context: object) -> pb.GetTopicResponse:  # noqa: N802
        raise_error = {"refused": refused, "too_much": too_much, "not_durable": not_durable, "defect": defect}
        raise_error[request.topic_name]()
        return pb.GetTopicResponse()


@pytest.fixture
def ask() -> Iterator[Ask]:
    server = AgentServer(Endpoint("127.0.0.1", 0), [(SERVICE, _Part())])
    server.start()
    with grpc.insecure_channel(str(server.endpoint)) as channel:
        get_topic: Any = channel.unary_unary(f"/{SERVICE.full_name}/GetTopic", bytes, bytes)
        yield lambda request: error_of(lambda: get_topic(request, timeout=DEADLINE))
    server.stop()


def named(error: str) -> bytes:
    return pb.GetTopicRequest(topic_name=error).SerializeToString()


def test_an_error_comes_with_code_reason_domain_and_the_field_that_is_wrong(ask: Ask) -> None:
    error = ask(named("refused"))
    assert (error.code, error.reason, error.domain) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "broker-agent",
    )
    assert error.message == "topic.perm: is 8, must be from 0 to 7"
    assert error.violations == (FieldViolation("topic.perm", "is 8, must be from 0 to 7"),)


def test_an_exceeded_limit_names_value_and_limit(ask: Ask) -> None:
    error = ask(named("too_much"))
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
    assert error.metadata == {"name": "topics", "value": "3", "limit": "2"}


def test_an_error_that_may_pass_says_when_to_try_again(ask: Ask) -> None:
    error = ask(named("not_durable"))
    assert (error.code, error.retry_after_seconds) == (grpc.StatusCode.UNAVAILABLE, 1.0)


def test_a_defect_tells_the_caller_an_id_and_only_the_log_the_text(ask: Ask) -> None:
    with capture_logs() as logs:
        error = ask(named("defect"))
    assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL_DEFECT")
    assert "Mellon" not in str(error)
    assert [(line["event"], line["error_id"], str(line["exc_info"])) for line in logs] == [
        ("defect", error.metadata["error_id"], "the secret is Mellon")
    ]


def test_bytes_that_are_no_message_are_the_callers_error(ask: Ask) -> None:
    error = ask(b"\xff\xff")
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")


def test_every_error_has_a_code_and_a_reason_of_its_own() -> None:
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, CallRefused) and kind is not CallRefused
    }
    assert set(CODES) == kinds
    reasons = [reason for _, reason in CODES.values()]
    assert len(set(reasons)) == len(reasons) >= 16
