"""Routes as RocketMQ's JSON: what is kept is what would be made anew, whatever happened in between."""

from __future__ import annotations

import json
from typing import Any

import pytest
from namesrv_api.v1.route_data_pb2 import TopicRouteData

from namesrv.core.changes import Cause
from namesrv.core.model import ORDER_TOPIC_CONFIG, Behaviour, DataVersion, KvConfigTable, StaticMapping
from namesrv.core.pace import run_steps
from namesrv.remoting.route_json import RouteJson
from tests.support.core_fleet import CLUSTER, A, B, Fleet


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


def test_an_ordered_topic_has_its_configuration() -> None:
    fleet = Fleet(Behaviour(order_message_enable=True))
    fleet.register(topics=("TopicTest", "Other"))
    fleet.state.publish_kv_config(KvConfigTable.of({ORDER_TOPIC_CONFIG: {"TopicTest": "broker-a:4"}}), Cause("test"))
    routes = RouteJson(fleet.state)
    assert read(routes, "Other").get("orderTopicConf") is None
    assert read(routes)["orderTopicConf"] == "broker-a:4"


def test_of_groups_of_one_name_only_the_first_one_in_the_answer_is_shown() -> None:
    fleet = Fleet()
    fleet.register("10.0.0.1:10911", topics=["Other"], cluster="Mike")
    fleet.register(B, cluster="Zulu")
    fleet.register(A, cluster="Alpha")
    routes = RouteJson(fleet.state)
    (group,) = read(routes)["brokerDatas"]
    assert (group["cluster"], len(read(routes)["queueDatas"])) == ("Zulu", 1)
    info = json.loads(run_steps(routes.cluster_info()))
    assert info["brokerAddrTable"]["broker-a"]["cluster"] == "Mike"
    assert info["clusterAddrTable"] == {cluster: ["broker-a"] for cluster in ("Alpha", "Mike", "Zulu")}
    fleet.unregister(B, cluster="Zulu")
    assert read(routes)["brokerDatas"][0]["cluster"] == "Alpha"


@pytest.mark.parametrize("bare_keys", [False, True])
def test_a_change_of_a_group_or_its_queues_is_in_the_next_route(bare_keys: bool) -> None:
    fleet = Fleet(Behaviour(support_acting_master=True, order_message_enable=True))
    fleet.state.publish_kv_config(KvConfigTable.of({ORDER_TOPIC_CONFIG: {"TopicTest": "broker-a:4"}}), Cause("test"))
    mapping = StaticMapping("__global__", 2, 0, False, ((0, 7), (1, 1)))
    routes = RouteJson(fleet.state)
    for count, filter_servers in enumerate(((), ("127.0.0.1:1",), ("127.0.0.1:2",), ()), 1):
        topics, version = [("TopicTest", (count, 4, 6, 0, mapping))], DataVersion(1, count)
        fleet.register(topics=topics, version=version, filter_servers=filter_servers)
        for _ in range(2):  # the second time the rows are kept
            body = routes.route("TopicTest", bare_keys=bare_keys)
            encoded = fleet.state.route("TopicTest")
            assert body is not None
            assert encoded is not None
            assert body == routes.of_message("TopicTest", TopicRouteData.FromString(encoded), bare_keys=bare_keys)
            assert b'"readQueueNums":%d' % count in body
            assert (b"{0:7,1:1}" in body, b'"orderTopicConf":"broker-a:4"' in body) == (bare_keys, True)
            assert all(server.encode() in body for server in filter_servers)


@pytest.mark.parametrize("zone_name", ["z1", "Z1"])
def test_groups_of_other_zones_are_left_out_and_that_answer_is_not_kept_for_others(zone_name: str) -> None:
    fleet = Fleet()
    fleet.register(A, zone_name="z1")
    fleet.register(B, name="broker-b", zone_name="z2")
    routes = RouteJson(fleet.state)
    for _ in range(2):
        assert [group["brokerName"] for group in read(routes, zone_name=zone_name)["brokerDatas"]] == ["broker-a"]
        assert len(read(routes)["brokerDatas"]) == 2
