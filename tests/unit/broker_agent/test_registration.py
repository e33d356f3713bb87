"""The broker as it is now, and its registrations."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1.route_data_pb2 import StaticTopicMapping

from broker_agent.auth import AgentSecurity
from broker_agent.registration import BrokerState, CurrentBroker, Registration
from broker_agent.timing import Timing
from broker_agent.topics.files import TopicsFile
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import MAX_STATE_VERSION, DataVersion, TopicConfig, TopicConfigTable
from namesrv_common.client.channels import ClientFiles
from tests.support.agents import STATE, put_topic, settings_of, topic
from tests.support.secured.certificates import Authority

NOW_MILLIS = 1_700_000_000_000
ON_NO_DISK = TopicsFile(Path("/nowhere/topics.json"), write=lambda _file, _content: None)


def current(version: DataVersion, file: TopicsFile = ON_NO_DISK) -> tuple[CurrentBroker, TopicConfigManager]:
    timing = Timing(wall_clock=lambda: NOW_MILLIS / 1000)
    topics = TopicConfigManager(TopicConfigTable(version, (topic("T"),)), timing, file=file)
    return CurrentBroker(STATE, topics, timing), topics


def test_as_long_as_nothing_changes_the_registration_is_the_same_one() -> None:
    broker, topics = current(DataVersion(1, 1))
    first = broker.registration()
    assert broker.registration() is first
    assert broker.change_filter_servers(("f:1",))
    second = broker.registration()
    assert not broker.change_filter_servers(("f:1",))
    assert broker.registration() is second
    put_topic(topics, topic("U"))
    assert not broker.registration().same_as(second)


@pytest.mark.parametrize("timestamp", [1, NOW_MILLIS, NOW_MILLIS + 3_600_000])
def test_a_changed_permission_is_a_later_version_whatever_the_clock_says(timestamp: int) -> None:
    broker, topics = current(DataVersion(timestamp, 5))
    versions = [broker.registration().version]
    for permission in (4, 6, 4):
        broker.change_permission(permission)
        versions.append(broker.registration().version)
    stamps = [version.timestamp_millis for version in versions]
    assert stamps == sorted(set(stamps))
    assert {version.counter for version in versions} == {5}
    put_topic(topics, topic("U"))  # at a time that may be earlier than that of the permission
    after = broker.registration().version
    assert after.timestamp_millis >= stamps[-1]
    assert after.counter == 6


def test_each_role_has_a_higher_state_version_than_the_one_before() -> None:
    broker, topics = current(DataVersion(1, 1, 3))
    assert broker.change_role(1) == 4
    assert topics.table.data_version.state_version == 4
    assert broker.change_role(0, 9) == broker.change_role(0, 9) == 9  # an equal one is its elector's
    assert broker.registration().version.state_version == 9
    assert broker.change_role(1) == 10
    with pytest.raises(ValueError, match=f"is {2**63 - 1}, above the limit of {MAX_STATE_VERSION}"):
        broker.change_role(0, 2**63 - 1)  # the role after it would have a version that no registration can carry
    assert broker.state.broker_id == 1
    assert broker.change_role(1, MAX_STATE_VERSION) == MAX_STATE_VERSION
    assert broker.change_role(0) == MAX_STATE_VERSION + 1


def test_a_role_on_a_slow_disk_holds_up_no_registration() -> None:
    saving, saved = threading.Event(), threading.Event()

    def save(_file: Path, _content: bytes) -> None:
        saving.set()
        assert saved.wait(20)

    broker, _ = current(DataVersion(1, 1, 3), file=TopicsFile(Path("/nowhere/topics.json"), write=save))
    before = broker.registration()
    with ThreadPoolExecutor(2) as pool:
        change = pool.submit(broker.change_role, 1)
        assert saving.wait(20)
        assert pool.submit(broker.registration).result(5) is before
        saved.set()
        assert change.result(20) == 4
    assert broker.registration().version.state_version == 4
    assert broker.state.broker_id == 1


MAPPING = StaticTopicMapping(scope="__global__", total_queue_nums=4, epoch=9, dirty=True, topic_queue_ids=[0, 3])
TABLE = TopicConfigTable(
    DataVersion(timestamp_millis=5, counter=0),
    (
        TopicConfig("normal", 4, 8, 6, 1, mapping=MAPPING),
        TopicConfig("read-only", 1, 1, 4, 0),
        TopicConfig("inherit", 1, 1, 7, 0),
    ),
)


def registration_of(**settings: Any) -> pb.RegisterBrokerRequest:
    return Registration(BrokerState.of(settings_of(**settings)), TABLE).full()


def test_a_registration_carries_broker_and_table_with_zeros_and_absences() -> None:
    labels = ["row=7", "rack=r1"]
    request = registration_of(broker_id=2, cluster="C", ha_server_addr="10.0.0.1:10912", label=labels)
    assert request.labels.labels == {"rack": "r1", "row": "7"}
    assert (request.broker.cluster_name, request.broker.broker_name) == ("C", "broker-a")
    assert (request.broker.broker_id, request.broker.broker_addr) == (2, "10.0.0.1:10911")
    assert request.ha_server_addr == "10.0.0.1:10912"
    first, second, _ = request.topic_configs
    assert (first.topic, first.read_queue_nums, first.write_queue_nums) == ("normal", 4, 8)
    assert (first.perm, first.topic_sys_flag, first.mapping) == (6, 1, MAPPING)
    assert not second.HasField("mapping")
    bare = registration_of()
    assert bare.broker.HasField("broker_id")
    assert bare.data_version.HasField("counter")
    assert bare.HasField("filter_servers")
    assert (bare.HasField("labels"), dict(bare.labels.labels)) == (True, {})  # removes earlier ones
    assert not bare.data_version.HasField("state_version")
    assert not bare.HasField("ha_server_addr")
    assert not bare.HasField("channel_id")


@pytest.mark.parametrize(
    ("broker_permission", "perms"),
    [(6, [6, 4, 7]), (7, [6, 4, 7]), (4, [4, 4, 4]), (2, [2, 0, 2]), (5, [4, 4, 5]), (0, [0, 0, 0])],
)
def test_a_broker_that_lacks_a_permission_masks_those_of_its_topics(broker_permission: int, perms: list[int]) -> None:
    request = registration_of(broker_permission=broker_permission)
    assert [topic.perm for topic in request.topic_configs] == perms
    assert request.topic_configs[0].topic_sys_flag == 1


def test_an_agent_shows_one_certificate_and_a_token_for_each_side(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("a")
    tokens = [tmp_path / name for name in ("token", "of_master")]
    for token in tokens:
        token.write_text("secret")
    shown = {"tls_cert": pair.certificate, "tls_key": pair.key, "master_token_file": tokens[1]}
    checked = {"tls_ca": authority.path, "tls_server_name": "ns", "token_file": tokens[0]}
    security = AgentSecurity(settings_of(**shown, **checked))
    assert security.listener is not None
    assert security.to_name_servers is not None
    assert security.to_name_servers.files == ClientFiles(authority.path, *pair, tokens[0], "ns")
    assert security.to_agents is not None
    assert security.to_agents.files == ClientFiles(authority.path, *pair, tokens[1]), "an agent is no name server"
    plain, caller = AgentSecurity(settings_of()), AgentSecurity(settings_of(**checked))
    assert (plain.listener, plain.to_name_servers, plain.to_agents) == (None, None, None)
    assert caller.to_name_servers is not None
    assert (caller.listener, caller.to_agents) == (None, None), "agents of a fleet are alike: the master has no TLS"
