"""What RocketMQ's own brokers register: tables that may be parts, each under the version of the whole."""

from __future__ import annotations

from namesrv.core.errors import Reason
from namesrv.core.model import LiveKey, RegisterBrokerResult, TopicTableFingerprint
from tests.support.core_fleet import CLUSTER, A, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.scenarios.groups import version

MARK = TopicTableFingerprint(100, b"a digest", 2)


def says_marked(fleet: Fleet, mark: TopicTableFingerprint = MARK, *, is_read: bool = False) -> RegisterBrokerResult:
    """The table T1, T2 comes with its mark, without having been read."""
    return fleet.register(topics=("T1", "T2"), version=version(2), topic_by_topic=True, mark=mark, is_read=is_read)


def test_only_a_table_of_another_mark_must_be_read_again(fleet: Fleet) -> None:
    says_marked(fleet, is_read=True)
    says_marked(fleet)
    assert fleet.topics == {"T1", "T2"}
    assert not says_marked(fleet).changed
    assert not fleet.topics_read
    says_marked(fleet, MARK._replace(digest=b"another"))
    assert fleet.topics_read == MARK.topics


def test_an_agent_under_the_brokers_own_version_is_asked_for_its_whole_table(fleet: Fleet) -> None:
    """The agent reads the version from the broker's topics.json, so it is the one that the broker registered."""
    fleet.register(topics=["T5"], version=version(5), topic_by_topic=True)
    assert fleet.query(version=version(5)) == (True, version(5))
    with refuses(Reason.NEED_FULL_REGISTRATION, match="topic by topic"):
        fleet.register(topics=(), version=version(6), base_version=version(5))
    fleet.register(topics=("T1", "T5"), version=version(5))
    assert fleet.topics == {"T1", "T5"}
    assert fleet.query(version=version(5)) == (False, version(5))


def test_heartbeats_keep_the_connection_of_the_broker_from_being_idle(fleet: Fleet) -> None:
    channel = fleet.heartbeats.open_channel()
    fleet.register(channel_id=channel, timeout_seconds=300.0, topic_by_topic=True)
    fleet.clock.advance(100.0)
    fleet.heartbeats.heartbeat_by_address(LiveKey(CLUSTER, A))
    fleet.clock.advance(100.0)
    assert fleet.state.liveness.idle_channels() == []
