"""Routes as RocketMQ's JSON: what is kept is what would be made anew, whatever happened in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.core.changes import Cause
from namesrv.core.model import ORDER_TOPIC_CONFIG, BrokerKey, DataVersion, Intent, IntentKind, KvConfigTable
from namesrv.core.policy import Behaviour
from namesrv.core.state_change import apply_now
from namesrv.remoting.route_json import RouteJson
from tests.support.core_fleet import CLUSTER, A, B, Fleet

TOPICS = ("T0", "T1", "T2", "rmq_sys_SYNC_BROKER_MEMBER_broker-0")
NAMES = ("broker-0", "broker-1")


def read(routes: RouteJson, topic: str = "TopicTest", **options: Any) -> Any:
    body = routes.route(topic, **options)
    return None if body is None else json.loads(body)


def test_a_route_has_all_that_rocketmqs_clients_read() -> None:
    fleet = Fleet()
    fleet.register(A, 0, enable_acting_master=True, zone_name="z1", filter_servers=("127.0.0.1:1",))
    fleet.register(B, 1, ())
    assert read(RouteJson(fleet.state)) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": A, "1": B},
                "brokerName": "broker-a",
                "cluster": CLUSTER,
                "enableActingMaster": True,
                "zoneName": "z1",
            }
        ],
        "filterServerTable": {A: ["127.0.0.1:1"]},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
        ],
    }
    assert read(RouteJson(fleet.state), "no such topic") is None


def test_numbers_as_keys_have_no_quotes_for_those_who_want_them_so() -> None:
    fleet = Fleet()
    fleet.register()
    routes = RouteJson(fleet.state)
    for _ in range(2):  # the second time it is kept
        assert b'"brokerAddrs":{0:"127.0.0.1:10911"}' in (routes.route("TopicTest", bare_keys=True) or b"")
        assert b'"brokerAddrs":{"0":"127.0.0.1:10911"}' in (routes.route("TopicTest") or b"")


def test_an_ordered_topic_has_its_configuration() -> None:
    fleet = Fleet(Behaviour(order_message_enable=True))
    fleet.register(topics=("TopicTest", "Other"))
    fleet.routes.operator_changes.publish_kv_config(
        KvConfigTable.of({ORDER_TOPIC_CONFIG: {"TopicTest": "broker-a:4"}}), Cause("test")
    )
    routes = RouteJson(fleet.state)
    assert read(routes, "Other").get("orderTopicConf") is None
    assert read(routes)["orderTopicConf"] == "broker-a:4"


def test_of_two_groups_of_one_name_only_the_one_that_registered_first_is_shown() -> None:
    fleet = Fleet()
    fleet.register(B, cluster="Zulu")
    fleet.register(A, cluster="Alpha")
    routes = RouteJson(fleet.state)
    (group,) = read(routes)["brokerDatas"]
    assert (group["cluster"], len(read(routes)["queueDatas"])) == ("Zulu", 1)
    info = json.loads(b"".join(part for part in routes.cluster_info() if part))
    assert info["brokerAddrTable"]["broker-a"]["cluster"] == "Zulu"
    assert info["clusterAddrTable"] == {"Alpha": ["broker-a"], "Zulu": ["broker-a"]}
    fleet.unregister(B, cluster="Zulu")
    assert read(routes)["brokerDatas"][0]["cluster"] == "Alpha"


def test_what_is_kept_is_bounded() -> None:
    fleet = Fleet()
    for broker, addr in enumerate((A, B)):
        topics = [(f"T{number}", (number, 4, 6, 0)) for number in range(50)]
        fleet.register(addr, name=f"broker-{broker}", topics=topics)
    routes = RouteJson(fleet.state, max_pieces=9)
    for number in range(50):
        rows = read(routes, f"T{number}")["queueDatas"]
        assert [row["readQueueNums"] for row in rows] == [number, number]
        for kept in (routes._pieces[False], routes._rows[False].queues, routes._rows[False].groups):
            assert 0 < len(kept) <= 9
        assert sum(map(len, routes._known_by_name.values())) == len(routes._rows[False].queues)


def test_a_group_that_changes_costs_no_other_group_what_is_kept() -> None:
    fleet = Fleet()
    fleet.register(A, name="broker-a")
    fleet.register(B, name="broker-b", topics=("Other",))
    routes = RouteJson(fleet.state)
    assert read(routes) is not None
    assert read(routes, "Other") is not None
    fleet.register("127.0.0.1:7", 1, (), name="broker-b")
    assert len(routes._rows[False].queues) == len(routes._rows[False].groups) == 1
    assert len(read(routes, "Other")["brokerDatas"][0]["brokerAddrs"]) == 2


def test_filter_servers_that_change_alone_are_in_a_route_that_was_kept() -> None:
    fleet = Fleet()
    routes = RouteJson(fleet.state)
    for filter_servers in ((), ("127.0.0.1:1",), ("127.0.0.1:2",), ()):
        fleet.register(filter_servers=filter_servers)
        for _ in range(2):  # the second time it is kept
            assert read(routes)["filterServerTable"] == ({A: list(filter_servers)} if filter_servers else {})


STEPS = st.one_of(
    st.tuples(
        st.just("register"), st.sampled_from(NAMES), st.integers(0, 1), st.sampled_from(("X", "Y")), st.integers(1, 3)
    ),
    st.tuples(st.just("filter"), st.sampled_from(((), ("127.0.0.1:1",), ("127.0.0.1:2",)))),
    st.tuples(st.just("unregister"), st.sampled_from(NAMES), st.integers(0, 1), st.sampled_from(("X", "Y"))),
    st.tuples(st.just("wipe"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("delete"), st.sampled_from(TOPICS)),
)


def addr_of(name: str, broker_id: int, cluster: str) -> str:
    return f"127.0.0.1:{NAMES.index(name) * 100 + broker_id * 10 + (cluster == 'Y') + 1}"


class Steps:
    """Does what a step says."""

    def __init__(self) -> None:
        self.fleet = Fleet(Behaviour(support_acting_master=True))
        self._counter = 0
        self._last: tuple[str, int, str, int] | None = None

    def register(
        self, name: str, broker_id: int, cluster: str, queues: int, filter_servers: tuple[str, ...] | None = None
    ) -> None:
        self._counter += 1
        self._last = (name, broker_id, cluster, queues)
        self.fleet.register(
            addr_of(name, broker_id, cluster),
            broker_id,
            [(topic, (queues, 4, 6, 0)) for topic in TOPICS[: queues + 1]],
            name=name,
            cluster=cluster,
            version=DataVersion(1, self._counter),
            enable_acting_master=True,
            filter_servers=filter_servers,
        )

    def filter(self, filter_servers: tuple[str, ...]) -> None:
        """The broker that registered last has other filter servers, and nothing else that is new."""
        if self._last is not None:
            self.register(*self._last, filter_servers)

    def unregister(self, name: str, broker_id: int, cluster: str) -> None:
        self.fleet.unregister(addr_of(name, broker_id, cluster), name=name, cluster=cluster)

    def wipe(self, name: str, is_wiped: bool) -> None:
        state, key = self.fleet.state, BrokerKey("X", name)
        intents = state.intents.without([key])
        if is_wiped:
            intents = intents.with_intent(Intent(IntentKind.WIPE_WRITE_PERM, key, "test", 1))
        apply_now(self.fleet.routes.operator_changes.publish_intents(intents, Cause("test")))

    def delete(self, topic: str) -> None:
        apply_now(self.fleet.routes.operator_changes.delete_topic(topic, None, Cause("test")))


@given(st.lists(STEPS, max_size=25))
def test_after_any_changes_what_is_kept_is_what_would_be_made_anew(steps: list[tuple[Any, ...]]) -> None:
    world = Steps()
    routes = RouteJson(world.fleet.state)
    for name, *arguments in steps:
        step: Callable[..., None] = getattr(world, name)
        step(*arguments)
        anew = RouteJson(world.fleet.state)
        for topic in TOPICS:
            for bare_keys in (False, True):
                kept = routes.route(topic, bare_keys=bare_keys)
                encoded = world.fleet.state.route(topic)
                assert kept == (encoded and anew.of_encoded(topic, encoded, bare_keys=bare_keys))
                assert kept == routes.route(topic, bare_keys=bare_keys) == anew.route(topic, bare_keys=bare_keys)


@pytest.mark.parametrize("zone_name", ["z1", "Z1"])
def test_groups_of_other_zones_are_left_out_and_that_answer_is_not_kept_for_others(zone_name: str) -> None:
    fleet = Fleet()
    fleet.register(A, zone_name="z1")
    fleet.register(B, name="broker-b", zone_name="z2")
    routes = RouteJson(fleet.state)
    for _ in range(2):
        assert [group["brokerName"] for group in read(routes, zone_name=zone_name)["brokerDatas"]] == ["broker-a"]
        assert len(read(routes)["brokerDatas"]) == 2
