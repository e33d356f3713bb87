"""Commands that take all topics of a broker into a file, and bring them to another broker."""

from __future__ import annotations

from typing import Any

import typer
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import NamesrvClient
from nsctl.commands.backup import File, read_file, write_new
from nsctl.commands.write import DryRun
from nsctl.output import Row
from nsctl.session import Session

FORMAT = 1
"""Number of the format, in the file."""
SYSTEM_TOPIC = "SYSTEM_TOPIC"
"""The reason by which an agent refuses topics that every broker makes for itself."""
FOLLOWED = "TOPICS_FOLLOWED"
"""The reason by which an agent refuses every topic: topics.json is its broker's."""
SAME, LEFT = "as it is", "left to the broker"
PAGE = 1_000
"""Topics asked for at once."""


def export_topics(session: Session, file: File) -> None:
    """Writes all topics of an agent's broker but the one of its own name to a new file."""
    topics = session.servers.first(_topics)
    write_new(file, {"format": FORMAT, "topics": topics})
    session.note(f"{len(topics):,} topics are in {file}")


def import_topics(session: Session, file: File, dry_run: DryRun = False) -> None:
    """Creates or changes the topics of a file at an agent's broker; the agent must own its topics.json."""
    found = read_file(file, FORMAT).get("topics")
    try:
        requests = [_request(topic, dry_run=dry_run) for topic in found or ()]
    except (ParseError, TypeError, AttributeError) as error:
        raise typer.BadParameter(f"{file} is no file of `nsctl agent export-topics`: {error}") from error
    [agent] = session.servers.all
    rows: list[Row] = []
    for request in requests:
        topic = request.topic.topic_name
        try:
            rows.append({"topic": topic, "result": _result(agent.call("CreateOrUpdateTopic", request))})
        except CallError as error:
            if error.reason == SYSTEM_TOPIC:
                rows.append({"topic": topic, "result": LEFT})
                continue
            session.failed(error)
            rows.append({"topic": topic, "result": f"failed: {error.reason}"})
            if error.reason == FOLLOWED or (error.unreachable and not error.error.reason):
                break  # it takes none, or does not answer
    session.show([row for row in rows if row["result"] not in (SAME, LEFT)], ("topic", "result"))
    same, left = (sum(row["result"] == result for row in rows) for result in (SAME, LEFT))
    session.note(f"of {len(requests):,} topics {same:,} are so already, {left:,} are the broker's own and left to it")


def _topics(server: NamesrvClient) -> list[dict[str, Any]]:
    status = server.call("GetAgentStatus", agent_pb.GetAgentStatusRequest())
    assert isinstance(status, agent_pb.GetAgentStatusResponse)
    found: list[dict[str, Any]] = []
    for page in server.pages("ListTopics", pb.ListTopicsRequest(page_size=PAGE)):
        assert isinstance(page, pb.ListTopicsResponse)
        topics = [topic for topic in page.topics if topic.topic_name != status.broker_name]
        found += [MessageToDict(topic, preserving_proto_field_name=True) for topic in topics]
    return found


def _request(values: dict[str, Any], *, dry_run: bool) -> pb.CreateOrUpdateTopicRequest:
    topic = ParseDict(values, pb.TopicConfig())
    attributes = dict(topic.attributes)
    topic.ClearField("attributes")
    return pb.CreateOrUpdateTopicRequest(topic=topic, set_attributes=attributes, validate_only=dry_run)


def _result(answer: Message) -> str:
    assert isinstance(answer, pb.CreateOrUpdateTopicResponse)
    return "created" if answer.created else "changed" if answer.changed else SAME
