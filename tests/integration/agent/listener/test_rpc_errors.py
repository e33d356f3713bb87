from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from broker_agent_api.v1.error_reason_pb2 import ErrorReason
from structlog.testing import capture_logs

from broker_agent.errors import CODES, Reason
from broker_agent.listener import AgentServer
from broker_agent.topics.topic_service import SERVICE
from namesrv_common.endpoints import Endpoint
from namesrv_common.errors import FieldViolation, invalid_field, limit_exceeded, not_durable
from namesrv_common.grpc_errors import RichError
from tests.support.agents.topic_agents import error_of
from tests.support.patience import TIMEOUT

Ask = Callable[[bytes], RichError]


def refused() -> None:
    raise invalid_field("topic_config.perm", "is 8, must be from 0 to 7")


def too_much() -> None:
    raise limit_exceeded("topics", 3, 2)


def disk_full() -> None:
    raise not_durable("disk full")


def defect() -> None:
    raise RuntimeError("the secret is Mellon")


class _Part:
    """Answers a change of a topic with the error of its name."""

    def CreateOrUpdateTopic(  # noqa: N802
        self, request: pb.CreateOrUpdateTopicRequest, _context: object
    ) -> pb.CreateOrUpdateTopicResponse:
        raise_error = {"refused": refused, "too_much": too_much, "not_durable": disk_full, "defect": defect}
        raise_error[request.topic_config.topic]()
        return pb.CreateOrUpdateTopicResponse()


@pytest.fixture
def ask() -> Iterator[Ask]:
    server = AgentServer(Endpoint("127.0.0.1", 0), [(SERVICE, _Part())])
    server.start()
    with grpc.insecure_channel(str(server.endpoint)) as channel:
        change: Any = channel.unary_unary(f"/{SERVICE.full_name}/CreateOrUpdateTopic", bytes, bytes)
        yield lambda request: error_of(lambda: change(request, timeout=TIMEOUT))
    server.stop()


def named(error: str) -> bytes:
    return pb.CreateOrUpdateTopicRequest(topic_config=pb.TopicConfig(topic=error)).SerializeToString()


def test_an_error_comes_with_code_reason_domain_and_the_field_that_is_wrong(ask: Ask) -> None:
    error = ask(named("refused"))
    assert (error.code, error.reason, error.domain) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "agent.namesrv.dev",
    )
    assert error.message == "topic_config.perm: is 8, must be from 0 to 7"
    assert error.violations == (FieldViolation("topic_config.perm", "is 8, must be from 0 to 7"),)


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


def test_the_contract_and_the_table_have_the_same_reasons() -> None:
    contract = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()}  # noqa: SIM118 # not a mapping
    assert CODES.keys() == set(Reason) == contract - {"UNSPECIFIED"}
