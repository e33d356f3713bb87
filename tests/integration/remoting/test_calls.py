"""Every request of the table, over a real connection, and the same seen over gRPC."""

from __future__ import annotations

import struct

import pytest
from namesrv_api.v1 import admin_service_pb2

from namesrv.remoting.wire import RequestCode
from tests.integration.remoting.conftest import LOOPBACK, address_of
from tests.support import metrics_page
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import (
    RemotingClient,
    broker_fields,
    packed_body,
    register,
    registration_body,
    topic_config,
)

ONE_WAY = 2
GROUP = {"0": "127.0.0.1:10911"}


def test_a_table_of_100_000_topics_is_taken_packed_while_others_are_answered(own_namesrv: NamesrvProcess) -> None:
    address = address_of(own_namesrv)
    topics = [f"topic-{number}" for number in range(100_000)]
    with RemotingClient(address) as broker, RemotingClient(address) as other:
        broker.send(103, broker_fields(), packed_body(topics))
        assert other.ask(105, {"topic": "NOPE"}).code == 17
        answer = broker.read()
        assert answer is not None
        assert answer.code == 0
        assert len(other.ask(206).json["topicList"]) == len(topics)


def test_an_unknown_topic_is_17_in_rocketmqs_words(client: RemotingClient) -> None:
    answer = client.ask(105, {"topic": "NOPE"})
    assert answer.code == 17
    assert (answer.remark or "").startswith("No topic route info in name server for the topic: NOPE\nSee https://")


def test_a_registration_is_seen_by_lookups_on_both_protocols(namesrv: NamesrvProcess, client: RemotingClient) -> None:
    answer = register(client)
    assert (answer.code, answer.fields, answer.body) == (0, {}, b"")
    route = client.ask(105, {"topic": "TopicTest", "ReqT": "1", "nsd": ""}).json
    assert route["brokerDatas"][0]["brokerAddrs"] == GROUP
    with namesrv.connect() as grpc_client:
        assert grpc_client.addrs() == {0: "127.0.0.1:10911"}
        entries = grpc_client.admin.ListAuditEntries(admin_service_pb2.ListAuditEntriesRequest()).entries
    callers = {entry.caller for entry in entries if entry.cause == "RegisterBroker"}
    assert callers
    assert all(caller.startswith("rocketmq:127.0.0.1:") for caller in callers)


def test_a_slave_learns_its_masters_addresses(client: RemotingClient) -> None:
    register(client)
    answer = register(client, (), broker_fields(addr="127.0.0.1:20911", broker_id=1))
    assert answer.fields == {"haServerAddr": "127.0.0.1:10912", "masterAddr": "127.0.0.1:10911"}


def test_a_static_topics_mapping_is_given_back_as_it_came(client: RemotingClient) -> None:
    mapping = {"bname": "broker-a", "currIdMap": {"0": 0, "1": 1}, "dirty": False, "epoch": 1795340517986}
    mapping |= {"scope": "__global__", "topic": "Static", "totalQueues": 2}
    register(client, ["Static", "Plain"], topicQueueMappingInfoMap={"Static": mapping})
    for version, key in ((513, b'"currIdMap":{"0":0'), (399, b'"currIdMap":{0:0')):
        assert key in client.ask(105, {"topic": "Static"}, version=version).body
    assert client.ask(105, {"topic": "Static"}).json["topicQueueMappingByBroker"] == {"broker-a": mapping}
    assert "topicQueueMappingByBroker" not in client.ask(105, {"topic": "Plain"}).json


@pytest.mark.parametrize("topic", ["%RETRY%group+orders", "订单", "a b", "orders/eu", "x@y", "a:b", "[red]", "-x"])
def test_a_topic_of_any_printable_name_is_served_on_both_ports(
    namesrv: NamesrvProcess, client: RemotingClient, topic: str
) -> None:
    assert register(client, [topic], broker_fields("брокер 1", "fd00::1:7a:10911")).code == 0
    with namesrv.connect() as grpc_client:
        assert grpc_client.addrs(topic) == {0: "fd00::1:7a:10911"}
        assert client.ask(216, {"topic": topic}).code == 0
        assert grpc_client.route(topic) is None


def test_a_body_that_is_not_what_its_sender_took_the_checksum_of_changes_nothing(client: RemotingClient) -> None:
    answer = client.ask(103, {**broker_fields(), "bodyCrc32": "1"}, registration_body(["TopicTest"]))
    assert (answer.code, (answer.remark or "").partition(":")[0]) == (1, "crc32 not match")
    assert client.ask(105, {"topic": "TopicTest"}).code == 17


@pytest.mark.parametrize("field", ["brokerName", "clusterName", "brokerAddr"])
def test_a_broker_with_a_name_that_is_not_printable_is_refused(client: RemotingClient, field: str) -> None:
    answer = client.ask(103, broker_fields() | {field: "a\x1b[2J"}, registration_body(["TopicTest"]))
    assert (answer.code, (answer.remark or "").startswith(field)) == (1, True)


def test_an_unregistration_is_a_success_also_the_second_time(client: RemotingClient) -> None:
    register(client)
    for _ in range(2):
        assert client.ask(104, broker_fields()).code == 0
        assert client.ask(105, {"topic": "TopicTest"}).code == 17


def test_any_question_about_the_version_is_answered_with_the_one_that_is_held(client: RemotingClient) -> None:
    fresh = client.ask(322, broker_fields(), b'{"counter":3,"timestamp":1795340540541}')
    assert (fresh.code, fresh.fields, fresh.body) == (0, {"changed": "true"}, b"")
    register(client, ["A", "B"], counter=3)
    same = client.ask(322, broker_fields(), b'{"counter":3,"timestamp":1795340540541,"stateVersion":0}')
    assert (same.fields, same.json["counter"]) == ({"changed": "false"}, 3)
    other = client.ask(322, broker_fields(), b'{"counter":4,"timestamp":1795340540541}')
    assert other.fields == {"changed": "true"}


def test_one_way_requests_are_never_answered(client: RemotingClient) -> None:
    register(client)
    fields = broker_fields()
    del fields["brokerId"]
    client.send(904, fields, flag=ONE_WAY)
    client.send(322, {}, b"nonsense", flag=ONE_WAY)
    client.send(99, {}, flag=ONE_WAY)
    client.send(103, broker_fields(addr="127.0.0.1:20911", broker_id=1), registration_body([]), flag=ONE_WAY)
    client.send(105, {"topic": "TopicTest"}, flag=1)  # an answer, to nobody
    assert client.ask(104, broker_fields("x", "127.0.0.1:1")).code == 0
    assert set(client.ask(105, {"topic": "TopicTest"}).json["brokerDatas"][0]["brokerAddrs"]) == {"0", "1"}


def test_lists_have_what_rocketmqs_have(client: RemotingClient) -> None:
    register(client, ["A", topic_config("U") | {"topicSysFlag": 1}, topic_config("S") | {"topicSysFlag": 2}])
    info = client.ask(106).json
    assert info["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}
    assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == GROUP
    assert client.ask(206).json == {"topicList": ["A", "S", "U"]}
    assert client.ask(224, {"cluster": "DefaultCluster"}).json == {"topicList": ["A", "S", "U"]}
    assert client.ask(224, {"cluster": "none"}).json == {"topicList": []}
    assert client.ask(304).json == {"brokerAddr": "127.0.0.1:10911", "topicList": ["DefaultCluster", "broker-a"]}
    lists = [client.ask(code).json["topicList"] for code in (311, 312, 313)]
    assert lists == [["U"], ["S"], ["S"]]
    group = client.ask(901, {"clusterName": "DefaultCluster", "brokerName": "broker-a"}).json["brokerMemberGroup"]
    assert group == {"brokerAddrs": GROUP, "brokerName": "broker-a", "cluster": "DefaultCluster"}
    nobody = client.ask(901, {"clusterName": "DefaultCluster", "brokerName": "none"}).json["brokerMemberGroup"]
    assert nobody["brokerAddrs"] == {}


def test_clients_before_4_9_4_get_numbers_as_keys_without_quotes(client: RemotingClient) -> None:
    register(client)
    bare = b'"brokerAddrs":{0:'
    for code, fields in ((105, {"topic": "TopicTest"}), (106, {}), (901, broker_fields())):
        assert bare in client.ask(code, fields, version=399).body
        assert bare not in client.ask(code, fields, version=401).body
    standard = {"topic": "TopicTest", "acceptStandardJsonOnly": "True"}
    assert bare not in client.ask(105, standard, version=399).body


def test_the_kv_configuration_is_one_on_both_protocols(namesrv: NamesrvProcess, client: RemotingClient) -> None:
    assert client.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}).code == 0
    assert client.ask(101, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}).fields == {"value": "broker-a:4"}
    missing = client.ask(101, {"namespace": "NS", "key": "K"})
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: NS Key: K")
    assert client.ask(219, {"namespace": "ORDER_TOPIC_CONFIG"}).json == {"table": {"T": "broker-a:4"}}
    assert client.ask(219, {"namespace": "NS"}).remark == "No config item, Namespace: NS"
    assert register(client).json == {"table": {"T": "broker-a:4"}}
    with namesrv.connect() as grpc_client:
        request = admin_service_pb2.GetKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key="T")
        assert grpc_client.admin.GetKvConfig(request).value == "broker-a:4"
    for _ in range(2):
        assert client.ask(102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}).code == 0
    assert client.ask(100, {"namespace": "", "key": "k", "value": "v"}).code == 1


def test_permissions_that_operators_change_last_over_registrations(
    client: RemotingClient, namesrv: NamesrvProcess
) -> None:
    register(client, ["A", "B"])
    wiped = client.ask(205, {"brokerName": "broker-a"})
    assert wiped.fields == {"wipeTopicCount": "2"}
    remedy = "mqadmin addWritePerm -b broker-a (RocketMQ 4.9 or later), or nsctl undrain broker-a"
    assert wiped.remark is not None
    assert wiped.remark.endswith(f"also after it restarts, until {remedy}")
    assert namesrv.wait_for("write_permission_wiped")["remedy"] == remedy
    warning = eventually(lambda: namesrv.events("topics_in_use_taken"))[-1]
    assert (warning["cause"], warning["topics"]) == ("WipeWritePermOfBroker", "A, B")
    register(client, ["A", "B"], counter=2)
    assert client.ask(105, {"topic": "A"}).json["queueDatas"][0]["perm"] == 4
    assert client.ask(327, {"brokerName": "broker-a"}).fields == {"addTopicCount": "2"}
    assert client.ask(105, {"topic": "A"}).json["queueDatas"][0]["perm"] == 6
    assert client.ask(205, {"brokerName": "none"}).fields == {"wipeTopicCount": "0"}


def test_a_deleted_topic_is_gone_and_deleting_what_is_not_there_is_a_success(client: RemotingClient) -> None:
    register(client, ["A", "B"])
    assert client.ask(216, {"topic": "A", "clusterName": "Other"}).code == 0
    assert client.ask(105, {"topic": "A"}).code == 0
    for _ in range(2):
        assert client.ask(216, {"topic": "A"}).code == 0
    assert client.ask(105, {"topic": "A"}).code == 17


def test_a_single_topic_is_registered_for_the_groups_that_there_are(client: RemotingClient) -> None:
    register(client)
    queue = {"brokerName": "broker-a", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "topicSysFlag": 0}
    body = f'{{"queueDatas":[{queue},{ {**queue, "brokerName": "none"} }]}}'.replace("'", '"').encode()
    assert client.ask(217, {"topic": "Single"}, body).code == 0
    assert [row["readQueueNums"] for row in client.ask(105, {"topic": "Single"}).json["queueDatas"]] == [8]


def test_settings_are_javas_properties_and_only_those_change_that_grpc_changes(own_namesrv: NamesrvProcess) -> None:
    with RemotingClient(address_of(own_namesrv)) as client:
        lines = client.ask(319).body.decode().splitlines()
        assert lines == sorted(lines)
        assert "orderMessageEnable=false" in lines
        assert client.ask(318, body=b"# comment\norderMessageEnable=true\n").code == 0
        assert "orderMessageEnable=true" in client.ask(319).body.decode().splitlines()
        for key in ("configStorePath", "kvConfigPath"):
            refused = client.ask(318, body=f"{key}=/tmp/x\n".encode())
            assert (refused.code, refused.remark) == (16, "Can not update config in black list.")
        for body in (b"supportActingMaster=true", b"dataDir=/x", b"remotingAllow=operators"):
            refused = client.ask(318, body=body)
            assert (refused.code, "changes with a start only: set --" in str(refused.remark)) == (16, True)
        assert client.ask(318, body=b"noSuchKey=1").code == 1
        assert client.ask(318, body=b"no equals").code == 1
    line = own_namesrv.wait_for("request_refused")
    assert line["problem"] == "the setting configStorePath never changes over the wire"


@pytest.mark.parametrize("code", [0, 905, 1001, 30999, -5])
def test_a_request_that_is_not_known_is_3_in_rocketmqs_words(client: RemotingClient, code: int) -> None:
    answer = client.ask(code)
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_while_it_warms_up_an_unknown_topic_is_1_and_never_17() -> None:
    process = NamesrvProcess(*LOOPBACK, "--warm-up-millis", "600000")
    with process, RemotingClient(address_of(process)) as client:
        answer = client.ask(105, {"topic": "NOPE"})
        assert (answer.code, (answer.remark or "").startswith("name server not ready")) == (1, True)
        register(client)
        assert client.ask(105, {"topic": "TopicTest"}).code == 0


def test_the_end_of_a_connection_is_its_brokers_end_but_not_that_of_an_older_one(own_namesrv: NamesrvProcess) -> None:
    address = address_of(own_namesrv)
    with RemotingClient(address) as reader:
        old, new = RemotingClient(address), RemotingClient(address)
        register(old)
        register(new)
        old.close()
        register(reader, ["Other"], broker_fields("broker-b", "127.0.0.1:20911"))
        assert reader.ask(105, {"topic": "TopicTest"}).code == 0
        new.close()
        eventually(lambda: reader.ask(105, {"topic": "TopicTest"}).code == 17)
        assert own_namesrv.wait_for("broker_removed")["reason"] == "CHANNEL_CLOSED"


def test_without_the_operators_and_settings_grades_their_calls_are_refused() -> None:
    with NamesrvProcess(*LOOPBACK) as process, RemotingClient(address_of(process)) as client:
        register(client)
        assert client.ask(105, {"topic": "TopicTest"}).code == 0
        for code in (100, 102, 205, 216, 318, 319, 327):
            answer = client.ask(code, {"namespace": "n", "key": "k", "value": "v", "brokerName": "broker-a"})
            assert (answer.code, "remoting_allow" in (answer.remark or "")) == (1, True)
        assert client.ask(999).code == 3
        lines = eventually(lambda: process.events("request_refused"), lambda lines: len(lines) == 8)
        assert {(line["code"], line["name"], line.get("grade"), line.get("remedy")) for line in lines} == {
            *(
                (int(code), code.name, "operators", "add operators to remoting_allow")
                for code in map(RequestCode, (100, 102, 205, 216, 319, 327))
            ),
            (318, "UPDATE_NAMESRV_CONFIG", "settings", "add settings to remoting_allow"),
            (999, "UNKNOWN", None, None),
        }


def test_a_refused_registration_is_logged_with_its_broker_and_reason() -> None:
    with NamesrvProcess(*LOOPBACK) as process, RemotingClient(address_of(process)) as client:
        register(client, broker=broker_fields("broker-a", "no-port"))
        register(client, ["Good", "odd\n"], broker_fields() | {"haServerAddr": "no-port"})
        refused = process.wait_for("registration_refused")
        assert (refused["broker"], refused["addr"], refused["reason"]) == ("broker-a", "no-port", "INVALID_FIELD")
        assert "brokerAddr: address 'no-port' has no port" in refused["problem"]
        assert process.wait_for("topics_skipped")["first"] == r"'odd\n' has characters that are not printable"
        assert process.wait_for("addresses_skipped")["first"] == "'no-port'"


def test_connections_and_requests_are_counted_by_the_name_of_their_code() -> None:
    process = NamesrvProcess(*LOOPBACK, "--metrics-listen", "127.0.0.1:0")
    with process, RemotingClient(address_of(process)) as client:
        register(client)
        client.ask(103, broker_fields(), b"nonsense")
        client.ask(105, {"topic": "NOPE"})
        client.ask(30999)
        page = process.wait_for("namesrv_started")["metrics"]
        # Of requests that were answered, nothing is kept. The engine frees the last one just after its answer has left.
        kept = ("namesrv_engine_request_bytes",)
        seen = eventually(lambda: metrics_page.samples(page), lambda seen: seen[kept] == 0)
    assert seen["namesrv_engine_remoting_connections",] == 1
    kinds = ("changed", "unchanged", "refused")
    assert [seen["namesrv_registrations_total", "full", result] for result in kinds] == [1, 0, 1]
    family = "namesrv_remoting_request_duration_seconds_count"
    counts = {labels[1:]: count for labels, count in seen.items() if labels[0] == family}
    lookup = ("GET_ROUTEINFO_BY_TOPIC", "ok")
    assert counts == {("REGISTER_BROKER", "ok"): 1, ("REGISTER_BROKER", "refused"): 1, lookup: 1}


def test_lookups_alone_can_be_allowed() -> None:
    process = NamesrvProcess(*LOOPBACK, "--remoting-allow", "lookups")
    with process, RemotingClient(address_of(process)) as client:
        assert register(client).code == 1
        assert client.ask(105, {"topic": "TopicTest"}).code == 17


def test_a_shutdown_closes_connections_and_removes_nobody(own_namesrv: NamesrvProcess) -> None:
    with RemotingClient(address_of(own_namesrv)) as client:
        register(client)
        assert own_namesrv.terminate() == 0
        assert client.read() is None
        assert not own_namesrv.events("broker_removed")


FOREIGN = {
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n": "an HTTP client; ",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": "a client of gRPC, which is served at --listen",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03": "it speaks TLS",
    b"PROXY TCP4 192.0.2.7 127.0.0.1 40000 9876\r\n": "a load balancer that sends the PROXY protocol",
    b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00": "a load balancer that sends the PROXY protocol",
    struct.pack(">II", 2**24, 10): "a frame of 16777216 bytes",
    struct.pack(">II", 12, 8) + b"code=105": "a header that is no JSON",
}


@pytest.mark.parametrize(("data", "problem"), FOREIGN.items())
def test_who_speaks_something_else_is_cut_and_told_with_what_to_do(
    namesrv: NamesrvProcess, data: bytes, problem: str
) -> None:
    with RemotingClient(address_of(namesrv)) as client:
        client.send_bytes(data)
        assert client.read() is None
        me = client.local_address
    ends = eventually(lambda: [line for line in namesrv.events("remoting_connection_ended") if line["peer"] == me])
    assert [line["problem"][: len(problem)] for line in ends] == [problem]
