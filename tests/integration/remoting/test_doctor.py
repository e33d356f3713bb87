"""``nsctl doctor`` on what brokers of RocketMQ register."""

from __future__ import annotations

from nsctl.session import FOUND
from tests.integration.remoting.conftest import address_of
from tests.support.programs.doctor import examined
from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient, register, topic_config


def found(namesrv: NamesrvProcess, exit_code: int) -> list[str]:
    code, rows = examined(namesrv.endpoint)
    assert code == exit_code, rows
    return [row["what"] for row in rows]


def test_a_topic_that_carries_no_messages_is_none_that_has_lost_its_writable_queue(namesrv: NamesrvProcess) -> None:
    of_the_group = topic_config("rmq_sys_SYNC_BROKER_MEMBER_broker-a", 1, perm=1)
    with RemotingClient(address_of(namesrv)) as broker:
        register(broker, ["TopicTest", of_the_group])
        assert found(namesrv, 0) == []
        register(broker, [topic_config("TopicTest", perm=4), of_the_group])
        assert found(namesrv, FOUND) == ["1 topic has no writable queue with a master: TopicTest"]
