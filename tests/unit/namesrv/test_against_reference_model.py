"""Any sequence of changes leaves the tables as a plain model says, and answers as generated code would encode them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.behaviour import Behaviour
from namesrv.core.errors import BrokerNotRegistered, StaleStateVersion
from namesrv.core.records import BrokerKey, DataVersion, LiveKey, QueueData, QueueNumbers, TopicConfig
from namesrv.core.steps import finish
from namesrv.core.topic_lists import UNIT, UNIT_SUB
from tests.unit.namesrv.fleet import Fleet
from tests.unit.namesrv.reference_model import Broker, ReferenceModel

_CLUSTERS = st.sampled_from(["c1", "c2"])
_NAMES = st.sampled_from(["broker-a", "broker-b"])
_ADDRS = st.sampled_from([f"10.0.0.{number}:10911" for number in range(1, 5)])
_IDS = st.integers(0, 2)
_VERSIONS = st.builds(DataVersion, st.integers(0, 1), st.integers(0, 2), st.integers(0, 1))
_TOPIC_NAMES = st.sampled_from(["T1", "T2", "T3"])
_NUMBERS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 4, 6]), st.integers(0, 3))
_TOPICS = st.lists(
    st.tuples(_TOPIC_NAMES, _NUMBERS),
    max_size=3,
    unique_by=lambda config: config[0],
)
_FILTERS = st.none() | st.lists(st.sampled_from(["f:1", "f:2"]), max_size=2, unique=True).map(tuple)
_TIMEOUT = 120.0


class TablesAgreeWithTheModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(Behaviour(mass_loss_percent=100))
        self.model = ReferenceModel()
        self.seen: object = self.model.visible()
        self.revision = 0

    @rule(
        cluster=_CLUSTERS, name=_NAMES, addr=_ADDRS, broker_id=_IDS, version=_VERSIONS, topics=_TOPICS,
        filter_servers=_FILTERS, data=st.data(),
    )  # fmt: skip
    def register(
        self,
        cluster: str,
        name: str,
        addr: str,
        broker_id: int,
        version: DataVersion,
        topics: list[TopicConfig],
        filter_servers: tuple[str, ...] | None,
        data: st.DataObject,
    ) -> None:
        channel = data.draw(st.sampled_from([None, *sorted(self.model.open_channels)]))
        broker = Broker(BrokerKey(cluster, name), broker_id, version, channel, self.fleet.clock.seconds)
        deposed = self.model.is_deposed(LiveKey(cluster, addr), broker)
        with pytest.raises(StaleStateVersion) if deposed else contextlib.nullcontext():
            self.fleet.register(
                addr, broker_id, topics, name=name, cluster=cluster, version=version,
                filter_servers=filter_servers, channel_id=channel,
            )  # fmt: skip
        if deposed:
            return
        self.model.register(LiveKey(cluster, addr), broker, topics, filter_servers)

    @rule(
        topic=_TOPIC_NAMES,
        queues=st.dictionaries(st.builds(BrokerKey, _CLUSTERS, _NAMES), _NUMBERS, min_size=1, max_size=3),
    )
    def register_topic(self, topic: str, queues: dict[BrokerKey, QueueNumbers]) -> None:
        before = dict(self.model.queues)
        if self.model.register_topic(topic, queues):
            assert self.fleet.register_topic(topic, queues) == (self.model.queues != before)
        else:
            with pytest.raises(BrokerNotRegistered):
                self.fleet.register_topic(topic, queues)

    @rule(cluster=_CLUSTERS, name=_NAMES, addr=_ADDRS)
    def unregister(self, cluster: str, name: str, addr: str) -> None:
        removed = self.fleet.unregister(addr, name=name, cluster=cluster)
        broker = self.model.brokers.get(LiveKey(cluster, addr))
        assert (removed is not None) == (broker is not None and broker.group.broker_name == name)
        if removed is not None:
            self.model.remove(removed.live.key)

    @rule()
    def open_channel(self) -> None:
        self.model.open_channels.add(self.fleet.manager.open_channel())

    @rule(data=st.data())
    def end_channel(self, data: st.DataObject) -> None:
        if self.model.open_channels:
            channel = data.draw(st.sampled_from(sorted(self.model.open_channels)))
            self.fleet.end_channel(channel)
            self.model.end_channel(channel)

    @rule(seconds=st.sampled_from([1.0, 60.0, 119.0, 120.0, 121.0]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.clock.advance(seconds)

    @rule()
    def scan(self) -> None:
        self.fleet.scan()
        self.model.scan(self.fleet.clock.seconds, _TIMEOUT)

    @rule(cluster=_CLUSTERS, name=_NAMES, addr=_ADDRS, broker_id=_IDS, version=_VERSIONS)
    def query(self, cluster: str, name: str, addr: str, broker_id: int, version: DataVersion) -> None:
        group = BrokerKey(cluster, name)
        answer = self.fleet.manager.query_data_version(group, broker_id, addr, version)
        broker = self.model.brokers.get(LiveKey(cluster, addr))
        if broker is None or (broker.group, broker.broker_id) != (group, broker_id):
            assert answer == (True, None)
        else:
            assert answer == (broker.version != version, broker.version)
            if broker.version == version:
                broker.last_heard = self.fleet.clock.seconds

    @invariant()
    def the_five_tables_agree(self) -> None:
        tables = self.fleet.manager.tables
        groups = self.model.group_addrs()
        assert {key: dict(group.addrs) for key, group in tables.broker_addr_table.items()} == groups
        clusters: dict[str, set[str]] = {}
        for key in groups:
            clusters.setdefault(key.cluster_name, set()).add(key.broker_name)
        assert tables.cluster_addr_table == clusters
        assert tables.filter_server_table == self.model.filters
        assert {
            key: Broker(live.broker, live.broker_id, live.data_version, live.channel_id, self._last_heard(key))
            for key, live in tables.broker_live_table.items()
        } == self.model.brokers
        rows = {
            (topic, queue.broker): _numbers(queue)
            for topic, queues in tables.topic_queue_table.copy().items()
            for queue in map(tables.queue_datas.by_fragment.__getitem__, queues)
        }
        assert rows == self.model.queues
        assert tables.topics_by_broker == {
            group: {topic for topic, owner in self.model.queues if owner == group} for group in tables.topics_by_broker
        }
        assert {owner for _, owner in self.model.queues} <= set(tables.topics_by_broker) <= set(groups)

    @invariant()
    def the_revision_moves_with_what_can_be_seen(self) -> None:
        visible, revision = self.model.visible(), self.fleet.manager.revision
        assert revision >= self.revision
        assert (revision > self.revision) == (visible != self.seen)
        self.seen, self.revision = visible, revision

    @invariant()
    def joined_routes_are_what_generated_code_encodes(self) -> None:
        for topic in {topic for topic, _ in self.model.queues}:
            expected = self._expected_route(topic)
            joined = self.fleet.manager.pickup_topic_route_data(topic)
            assert joined is not None
            assert route_data_pb2.TopicRouteData.FromString(joined) == expected
            assert joined == expected.SerializeToString(deterministic=True)

    @invariant()
    def lists_agree(self) -> None:
        lists = self.fleet.manager.topic_lists
        assert {
            "all": finish(lists.all_after("", 10)),
            "c1": finish(lists.of_cluster_after("c1", "", 10)),
            "unit": finish(lists.with_flags_after(UNIT, 0, "", 10)),
            "sub": finish(lists.with_flags_after(UNIT_SUB, 0, "", 10)),
            "sub not unit": finish(lists.with_flags_after(UNIT_SUB, UNIT, "", 10)),
            "system": finish(lists.system_after("", 10)),
        } == self.model.lists()
        assert (lists.broker_addr() is None) == (not self.model.brokers)

    @invariant()
    def a_snapshot_holds_every_row(self) -> None:
        messages = [
            route_service_pb2.StreamRouteSnapshotResponse.FromString(message)
            for message in self.fleet.manager.snapshot().messages()
        ]
        assert messages[0].HasField("snapshot_header")
        assert {message.header.revision for message in messages} == {self.fleet.manager.revision}
        rows = {
            (row.topic, BrokerKey(queue.cluster_name, queue.broker_name)): (
                queue.read_queue_nums,
                queue.write_queue_nums,
                queue.perm,
                queue.topic_sys_flag,
            )
            for message in messages
            for row in message.chunk.topics
            for queue in row.queue_datas
        }
        assert rows == self.model.queues
        end = messages[-1].snapshot_end
        assert (end.queue_data_count, end.live_broker_count) == (len(self.model.queues), len(self.model.brokers))
        assert sum(len(message.chunk.live_brokers) for message in messages) == len(self.model.brokers)

    def _last_heard(self, key: LiveKey) -> float:
        return self.fleet.manager._signs_of_life._brokers._deadlines[key].last_heard

    def _expected_route(self, topic: str) -> route_data_pb2.TopicRouteData:
        expected = route_data_pb2.TopicRouteData()
        owners = sorted(owner for name, owner in self.model.queues if name == topic)
        groups = self.model.group_addrs()
        for owner in owners:
            read, write, perm, flag = self.model.queues[topic, owner]
            expected.queue_datas.add(
                broker_name=owner.broker_name,
                cluster_name=owner.cluster_name,
                read_queue_nums=read,
                write_queue_nums=write,
                perm=perm,
                topic_sys_flag=flag,
            )
            expected.broker_datas.add(
                cluster_name=owner.cluster_name, broker_name=owner.broker_name, broker_addrs=_addrs(groups[owner])
            )
        for owner in owners:
            stored = self.fleet.manager.tables.broker_addr_table[owner]
            for addr in stored.addrs.values():
                if filter_servers := self.model.filters.get(LiveKey(owner.cluster_name, addr)):
                    expected.filter_servers.add(
                        cluster_name=owner.cluster_name, broker_addr=addr, filter_servers=filter_servers
                    )
        return expected


def _numbers(queue: QueueData | route_data_pb2.QueueData) -> QueueNumbers:
    return queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag


def _addrs(addrs: dict[int, str]) -> list[route_data_pb2.BrokerAddr]:
    return [route_data_pb2.BrokerAddr(broker_id=broker_id, broker_addr=addrs[broker_id]) for broker_id in sorted(addrs)]


TestTablesAgreeWithTheModel = TablesAgreeWithTheModel.TestCase
TestTablesAgreeWithTheModel.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
