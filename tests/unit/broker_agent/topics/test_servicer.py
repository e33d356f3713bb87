from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from broker_agent_api.v1.topic_config_service_pb2_grpc import TopicConfigServiceStub

from broker_agent.topics import topic_service
from broker_agent.topics.files import encode_topics, load_topic_config_table
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable, built_in_topics
from broker_agent.topics.topic_service import KEPT_TABLES, TopicConfigServicer
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock
from tests.unit.broker_agent.topic_agents import error_of, stub_of, topic_agent

BUILT_IN = built_in_topics("c", "b")
TOPICS = tuple(TopicConfig(f"topic-{number}", number, number, 6) for number in range(10))
VERSION = DataVersion(999_000, 5)


class Agent:
    """An agent with ten topics, and a client of it."""

    def __init__(self, manager: TopicConfigManager, stub: TopicConfigServiceStub) -> None:
        self.manager = manager
        self.stub = stub
        self.slave = False

    def put(self, topic: pb.TopicConfig, **fields: Any) -> pb.CreateOrUpdateTopicResponse:
        return self.stub.CreateOrUpdateTopic(pb.CreateOrUpdateTopicRequest(topic=topic, **fields))

    def pages(self, size: int) -> Iterator[pb.ListTopicsResponse]:
        token = ""
        while True:
            page = self.stub.ListTopics(pb.ListTopicsRequest(page_size=size, page_token=token))
            yield page
            token = page.next_page_token
            if not token:
                return


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "topics.json"
    path.write_bytes(encode_topics(TopicConfigTable(VERSION, TOPICS)))
    return path


@pytest.fixture
def agent(path: Path) -> Iterator[Agent]:
    manager = TopicConfigManager.own(path, (), timing=agent_timing(VirtualClock()))
    agents: list[Agent] = []
    with topic_agent(TopicConfigServicer(manager, lambda: agents[0].slave)) as endpoint, stub_of(endpoint) as stub:
        agents.append(Agent(manager, stub))
        yield agents[0]


def test_a_new_topic_has_what_was_said_and_rocketmqs_defaults_for_the_rest(agent: Agent, path: Path) -> None:
    answer = agent.put(pb.TopicConfig(topic_name="New", read_queue_nums=0), set_attributes={"message.type": "FIFO"})
    expected = TopicConfig("New", 0, 16, 6, attributes={"message.type": "FIFO"})
    assert (answer.created, answer.changed, answer.data_version.counter) == (True, True, 6)
    assert answer.topic == agent.stub.GetTopic(pb.GetTopicRequest(topic_name="New")).topic
    assert (answer.topic.read_queue_nums, answer.topic.write_queue_nums, answer.topic.perm) == (0, 16, 6)
    assert load_topic_config_table(path).get("New") == expected


def test_fields_that_are_absent_stay_as_they_are(agent: Agent) -> None:
    agent.put(pb.TopicConfig(topic_name="topic-3", order=True, topic_sys_flag=1))
    agent.put(pb.TopicConfig(topic_name="topic-3", perm=4, topic_filter_type=pb.TOPIC_FILTER_TYPE_MULTI_TAG))
    assert agent.manager.table.get("topic-3") == TopicConfig("topic-3", 3, 3, 4, 1, True, "MULTI_TAG")


def test_an_update_that_changes_nothing_says_so_and_makes_no_version(agent: Agent) -> None:
    answer = agent.put(pb.TopicConfig(topic_name="topic-3", perm=6))
    assert (answer.created, answer.changed, answer.data_version.counter) == (False, False, 5)


def test_attributes_are_set_and_taken_away(agent: Agent) -> None:
    topic = pb.TopicConfig(topic_name="topic-3")
    assert agent.put(topic, set_attributes={"message.type": "FIFO"}).topic.attributes == {"message.type": "FIFO"}
    assert agent.put(topic, delete_attributes=["message.type"]).topic.attributes == {}
    error = error_of(lambda: agent.put(topic, delete_attributes=["message.type"]))
    assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "delete_attributes[0]")


def test_a_call_that_only_checks_answers_what_would_be_and_changes_nothing(agent: Agent, path: Path) -> None:
    before = path.read_bytes()
    answer = agent.put(pb.TopicConfig(topic_name="New"), validate_only=True)
    assert (answer.created, answer.data_version.counter) == (True, 6)
    agent.stub.DeleteTopic(pb.DeleteTopicRequest(topic_name="topic-3", validate_only=True))
    assert agent.manager.table.data_version == VERSION
    assert path.read_bytes() == before


def test_a_deleted_topic_is_gone_and_a_second_deletion_says_so(agent: Agent, path: Path) -> None:
    request = pb.DeleteTopicRequest(topic_name="topic-3")
    assert agent.stub.DeleteTopic(request).topic.read_queue_nums == 3
    assert load_topic_config_table(path).get("topic-3") is None
    again = error_of(lambda: agent.stub.DeleteTopic(request))
    assert (again.code, again.reason) == (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")
    get = error_of(lambda: agent.stub.GetTopic(pb.GetTopicRequest(topic_name="topic-3")))
    assert (get.code, get.reason) == (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize(
    ("topic", "field"),
    [
        (pb.TopicConfig(), "topic.topic_name"),
        (pb.TopicConfig(topic_name="a b"), "topic.topic_name"),
        (pb.TopicConfig(topic_name="T" * 128), "topic.topic_name"),
        (pb.TopicConfig(topic_name="%RETRY%" + "T" * 249), "topic.topic_name"),
        (pb.TopicConfig(topic_name="T", read_queue_nums=-1), "topic.read_queue_nums"),
        (pb.TopicConfig(topic_name="T", read_queue_nums=65_536), "topic.read_queue_nums"),
        (pb.TopicConfig(topic_name="T", write_queue_nums=65_536), "topic.write_queue_nums"),
        (pb.TopicConfig(topic_name="T", perm=8), "topic.perm"),
        (pb.TopicConfig(topic_name="T", perm=-1), "topic.perm"),
        (pb.TopicConfig(topic_name="T", topic_sys_flag=-1), "topic.topic_sys_flag"),
        (pb.TopicConfig(topic_name="T", topic_filter_type=3), "topic.topic_filter_type"),  # type: ignore[arg-type]
        (pb.TopicConfig(topic_name="T", attributes={"message.type": "FIFO"}), "topic.attributes"),
    ],
)
def test_a_field_that_breaks_its_rule_is_named_and_nothing_changes(
    agent: Agent, topic: pb.TopicConfig, field: str
) -> None:
    error = error_of(lambda: agent.put(topic))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert [violation.field for violation in error.violations] == [field]
    assert agent.manager.table.data_version == VERSION


def test_the_limits_themselves_are_allowed(agent: Agent) -> None:
    agent.put(pb.TopicConfig(topic_name="T" * 127, read_queue_nums=65_535, write_queue_nums=0, perm=7))
    agent.put(pb.TopicConfig(topic_name="%RETRY%" + "T" * 248, perm=0))
    assert agent.manager.table.data_version.counter == VERSION.counter + 2


def test_system_topics_are_refused(agent: Agent) -> None:
    error = error_of(lambda: agent.put(pb.TopicConfig(topic_name="TBW102")))
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SYSTEM_TOPIC")


def test_a_slave_refuses_changes_and_answers_questions(agent: Agent) -> None:
    agent.slave = True
    for error in (
        error_of(lambda: agent.put(pb.TopicConfig(topic_name="New"))),
        error_of(lambda: agent.stub.DeleteTopic(pb.DeleteTopicRequest(topic_name="topic-3"))),
    ):
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_MASTER")
    assert agent.stub.GetTopic(pb.GetTopicRequest(topic_name="topic-3")).topic.perm == 6


def test_an_agent_that_follows_refuses_changes_and_answers_questions(path: Path) -> None:
    manager = TopicConfigManager.follow(path)
    with topic_agent(TopicConfigServicer(manager, lambda: True)) as endpoint, stub_of(endpoint) as stub:
        new = pb.CreateOrUpdateTopicRequest(topic=pb.TopicConfig(topic_name="New"))
        for error in (
            error_of(lambda: stub.CreateOrUpdateTopic(new)),
            error_of(lambda: stub.DeleteTopic(pb.DeleteTopicRequest(topic_name="topic-3"))),
        ):
            assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TOPICS_FOLLOWED")
        assert stub.ListTopics(pb.ListTopicsRequest()).total == 10


@pytest.mark.parametrize("size", [1, 3, 10, 0, 100_000])
def test_pages_of_any_size_give_all_topics_once_and_in_order(agent: Agent, size: int) -> None:
    pages = list(agent.pages(size))
    assert [topic.topic_name for page in pages for topic in page.topics] == [topic.topic_name for topic in TOPICS]
    assert {page.data_version.counter for page in pages} == {5}
    assert {page.total for page in pages} == {10}


def test_pages_are_filled_by_bytes_too_and_never_empty(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_service, "MAX_PAGE_BYTES", 50)
    assert [len(page.topics) for page in agent.pages(100)] == [2, 2, 2, 2, 2]
    monkeypatch.setattr(topic_service, "MAX_PAGE_BYTES", 1)
    assert [len(page.topics) for page in agent.pages(100)] == [1] * 10


def test_all_pages_of_a_list_are_of_one_version_while_topics_change(agent: Agent) -> None:
    names: list[str] = []
    for number, page in enumerate(agent.pages(4)):
        names += [topic.topic_name for topic in page.topics]
        assert page.data_version.counter == 5
        agent.put(pb.TopicConfig(topic_name=f"topic-{number}", perm=1))
        agent.stub.DeleteTopic(pb.DeleteTopicRequest(topic_name=f"topic-{9 - number}"))
    assert names == [topic.topic_name for topic in TOPICS]


def test_a_list_whose_table_is_gone_is_told_to_start_again(agent: Agent) -> None:
    first = agent.stub.ListTopics(pb.ListTopicsRequest(page_size=1))
    for number in range(KEPT_TABLES):
        agent.put(pb.TopicConfig(topic_name=f"New-{number}"))
        agent.stub.ListTopics(pb.ListTopicsRequest(page_size=1))
    error = error_of(lambda: agent.stub.ListTopics(pb.ListTopicsRequest(page_token=first.next_page_token)))
    assert (error.code, error.reason) == (grpc.StatusCode.ABORTED, "TOPIC_TABLE_CHANGED")


def test_who_has_the_version_already_gets_no_topics(agent: Agent) -> None:
    version = agent.stub.ListTopics(pb.ListTopicsRequest()).data_version
    same = agent.stub.ListTopics(pb.ListTopicsRequest(unless_version=version))
    assert (same.unchanged, len(same.topics), same.data_version) == (True, 0, version)
    version.state_version = 0
    assert len(agent.stub.ListTopics(pb.ListTopicsRequest(unless_version=version)).topics) == 10


@pytest.mark.parametrize("token", ["x", "eA==", "MS4yLi4tMQ==", "MS4yLjMuNC41", "é"])
def test_a_page_token_of_elsewhere_is_refused(agent: Agent, token: str) -> None:
    error = error_of(lambda: agent.stub.ListTopics(pb.ListTopicsRequest(page_token=token)))
    assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "page_token")


def test_a_negative_page_size_is_refused(agent: Agent) -> None:
    error = error_of(lambda: agent.stub.ListTopics(pb.ListTopicsRequest(page_size=-1)))
    assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "page_size")


def test_the_built_in_topics_can_be_read(path: Path) -> None:
    path.unlink()
    manager = TopicConfigManager.own(path, BUILT_IN)
    with topic_agent(TopicConfigServicer(manager, lambda: False)) as endpoint, stub_of(endpoint) as stub:
        answer = stub.ListTopics(pb.ListTopicsRequest())
    assert [topic.topic_name for topic in answer.topics] == [topic.topic_name for topic in BUILT_IN]
    assert answer.total == len(BUILT_IN)


def test_fields_of_the_file_that_the_wire_has_not_survive_an_update(agent: Agent) -> None:
    agent.manager.copy((replace(TOPICS[1], unknown={"new": 1}),), VERSION)
    agent.put(pb.TopicConfig(topic_name="topic-1", perm=2))
    assert agent.manager.table.get("topic-1") == replace(TOPICS[1], perm=2, unknown={"new": 1})
