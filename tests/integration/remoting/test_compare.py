"""nsctl on RocketMQ's protocol: ``compare-rocketmq`` with another name server, and ``doctor``."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from nsctl import rocketmq
from nsctl.cli import app
from nsctl.rocketmq import MAX_ANSWER_BYTES, RocketmqNamesrv
from nsctl.session import FOUND, UNREACHABLE
from tests.integration.remoting.conftest import LOOPBACK, address_of
from tests.support.programs.nsctl_runs import examined
from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient, broker_fields, register, server_tls, stand_in, topic_config
from tests.support.secured.certificates import Authority
from tests.support.virtual_clock import VirtualClock


def compared(namesrv: NamesrvProcess, rocketmq: str, exit_code: int, *flags: str) -> list[dict[str, Any]]:
    arguments = ["compare-rocketmq", rocketmq, "-o", "json", "--namesrv", str(namesrv.endpoint), *flags]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == exit_code, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout) if result.stdout else []
    return rows


def test_what_differs_is_shown_and_nothing_once_it_is_the_same(namesrv: NamesrvProcess) -> None:
    other = NamesrvProcess(*LOOPBACK, "--remoting-allow", "lookups,registrations,operators,settings")
    with other, RemotingClient(address_of(namesrv)) as here, RemotingClient(address_of(other)) as there:
        register(here, ["Same", "Here"])
        register(here, [], broker_fields(addr="127.0.0.1:20911", broker_id=1))
        register(there, ["Same", topic_config("There", perm=4)])
        rows = compared(namesrv, address_of(other), FOUND)
        assert [row["broker"] for row in rows if row["part"] == "broker"] == ["broker-a"]
        assert [row["topic"] for row in rows if row["part"] == "topic"] == ["Here", "There"]
        register(there, ["Here"])
        register(there, [], broker_fields(addr="127.0.0.1:20911", broker_id=1))
        register(here, [topic_config("There", perm=4)])
        assert compared(namesrv, address_of(other), 0) == []


def rocketmq_answers(groups: Mapping[str, tuple[str, str]], topics: Sequence[str]) -> Callable[[int], Any]:
    """What a name server of RocketMQ answers: its routes are in the order of the brokers' names.

    Args:
        groups: Cluster and address of each group, by name.
        topics: Topics, each on all groups with 4 queues and all permissions.
    """
    datas = {
        name: {"brokerAddrs": {"0": addr}, "brokerName": name, "cluster": cluster}
        for name, (cluster, addr) in sorted(groups.items())
    }
    queues = [
        {"brokerName": name, "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4} for name in datas
    ]
    bodies: dict[int, Any] = {
        219: {"table": {}},
        319: "orderMessageEnable=false",
        105: {"brokerDatas": list(datas.values()), "filterServerTable": {}, "queueDatas": queues},
        106: {"brokerAddrTable": datas, "clusterAddrTable": {}},
        206: {"topicList": list(topics)},
    }
    return lambda code: (0, "", bodies[code].encode() if code == 319 else json.dumps(bodies[code]).encode())


def register_groups(client: RemotingClient, groups: Mapping[str, tuple[str, str]], topics: Sequence[str]) -> None:
    for name, (cluster, addr) in groups.items():
        register(client, topics, broker_fields(name, addr) | {"clusterName": cluster})


TWO_CLUSTERS = {"broker-a": ("B", "127.0.0.1:10911"), "broker-b": ("A", "127.0.0.1:20911")}
OWN = ["A", "B", "B_REPLY_TOPIC", "BenchmarkTest", "RMQ_SYS_ROCKSDB_OFFSET_TOPIC", "%RETRY%g", "%DLQ%g", "broker-a"]


@pytest.mark.parametrize("with_tls", [False, True])
def test_clusters_and_brokers_that_sort_in_opposite_ways_do_not_differ(
    own_namesrv: NamesrvProcess, tmp_path: Path, with_tls: bool
) -> None:
    authority = Authority(tmp_path / "authority")
    tls, flags = server_tls(authority.sign_server()), ["--rocketmq-tls-ca", str(authority.path)]
    there = stand_in(rocketmq_answers(TWO_CLUSTERS, ["orders", "payments"]), tls if with_tls else None)
    with RemotingClient(address_of(own_namesrv)) as client, there as rocketmq:
        register_groups(client, TWO_CLUSTERS, ["orders", "payments"])
        assert compared(own_namesrv, rocketmq, 0, *(flags if with_tls else ())) == []


def test_a_lost_retry_topic_a_key_and_a_setting_are_differences(own_namesrv: NamesrvProcess) -> None:
    there = rocketmq_answers(TWO_CLUSTERS, ["orders", "%RETRY%g+orders"])

    def answer(code: int) -> Any:
        order = {"table": {"orders": "broker-a:4"}}
        return {219: (0, "", json.dumps(order).encode()), 319: (0, "", b"orderMessageEnable=true\nx=y")}.get(
            code
        ) or there(code)

    with RemotingClient(address_of(own_namesrv)) as client, stand_in(answer) as rocketmq:
        register_groups(client, TWO_CLUSTERS, ["orders"])
        rows = compared(own_namesrv, rocketmq, FOUND)
    expected = [*[("topic", "%RETRY%g+orders")] * 2, ("kv", "orders"), ("setting", "orderMessageEnable")]
    assert [(row["part"], row.get("topic") or row.get("key") or row.get("setting")) for row in rows] == expected


def test_a_missing_broker_is_named_once_with_what_clients_there_do_without(own_namesrv: NamesrvProcess) -> None:
    topics = [f"topic-{number:02}" for number in range(13)]
    with RemotingClient(address_of(own_namesrv)) as client:
        register_groups(client, TWO_CLUSTERS, topics)
        fewer = {"broker-a": TWO_CLUSTERS["broker-a"]}
        with stand_in(rocketmq_answers(fewer, topics)) as rocketmq:
            [row] = compared(own_namesrv, rocketmq, FOUND)
        assert (row["part"], row["cluster"], row["broker"], row["rocketmq"]) == ("broker", "A", "broker-b", "not there")
        assert row["clients_of_rocketmq"] == "do not use it: 13 topics (topic-00, topic-01, topic-02, ...)"
        more = TWO_CLUSTERS | {"broker-c": ("A", "127.0.0.1:30911")}
        with stand_in(rocketmq_answers(more, topics)) as rocketmq:
            [row] = compared(own_namesrv, rocketmq, FOUND)
        assert (row["broker"], row["here"]) == ("broker-c", "not there")
        assert row["clients_of_rocketmq"] == "use it: 13 topics (topic-00, topic-01, topic-02, ...)"


def test_differences_that_a_decision_explains_are_of_a_class_of_their_own(own_namesrv: NamesrvProcess) -> None:
    there = stand_in(rocketmq_answers(TWO_CLUSTERS, ["held", "orders", "payments", *OWN]))
    with RemotingClient(address_of(own_namesrv)) as client, there as rocketmq:
        register_groups(client, TWO_CLUSTERS, ["held", "orders", "payments", *OWN])

        def decide(*command: str) -> None:
            result = CliRunner().invoke(app, [*command, "--namesrv", str(own_namesrv.endpoint)])
            assert result.exit_code == 0, result.output

        decide("drain", "broker-a", "--for", "1h")
        decide("delete-topic", "held", "--hold", "--force")
        drained, held = sorted(compared(own_namesrv, rocketmq, 0), key=lambda row: str(row["topic"]))
        assert {row["part"] for row in (held, drained)} == {"planned"}
        assert held["clients_of_rocketmq"] == "still find held"
        assert (drained["cluster"], drained["broker"]) == ("B", "broker-a")
        assert drained["until"].startswith("2")
        assert drained["clients_of_rocketmq"] == "keep writing to broker-a: 2 topics (orders, payments)"
        table = CliRunner().invoke(app, ["compare-rocketmq", rocketmq, "--namesrv", str(own_namesrv.endpoint)])
        assert "only planned differences between here and" in table.stderr
        register(
            client,
            ["held", topic_config("orders", queues=8), "payments", *OWN],
            broker_fields() | {"clusterName": "B"},
            counter=2,
        )
        rows = compared(own_namesrv, rocketmq, FOUND)
        assert [row["topic"] for row in rows if row["part"] == "topic"] == ["orders"], "the drain does not explain it"
        [still] = [row["clients_of_rocketmq"] for row in rows if row.get("intent") and row["broker"]]
        assert still == "keep writing to broker-a: 1 topic (payments)"


def test_who_does_not_answer_is_named(namesrv: NamesrvProcess) -> None:
    assert compared(namesrv, "127.0.0.1:1", UNREACHABLE) == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"brokerAddrTable": {"broker-a": {}}}',
        b'{"brokerAddrTable": {"broker-a": {"cluster": "c", "brokerName": "b", "brokerAddrs": {"first": "a:1"}}}}',
        b'{"brokerAddrTable": {"broker-a": {"cluster": 1, "brokerName": [], "brokerAddrs": {}}}}',
        b'{"brokerAddrTable": []}',
        b"[" * 100_000,
        b"",
    ],
    ids=["fields missing", "an id that is none", "other kinds", "a list", "too deep", "nothing"],
)
def test_a_body_that_is_none_of_rocketmq_is_one_line(namesrv: NamesrvProcess, body: bytes) -> None:
    with stand_in(lambda _code: (0, "", body)) as address:
        arguments = ["compare-rocketmq", address, "--namesrv", str(namesrv.endpoint)]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == UNREACHABLE, result.output
    assert len(result.stderr.splitlines()) == 1
    assert "something else than RocketMQ's protocol" in result.stderr


def failure_of(address: str, clock: VirtualClock | None = None) -> str:
    """Why the topics of a name server of RocketMQ cannot be read."""
    monotonic = (clock or VirtualClock()).monotonic
    with (
        RocketmqNamesrv(Endpoint.parse(address), 20.0, monotonic=monotonic) as server,
        pytest.raises(CallError) as caught,
    ):
        server.topics()
    return str(caught.value)


def test_an_answer_of_too_many_values_is_refused_before_it_is_parsed() -> None:
    with (
        mock.patch.object(rocketmq, "MAX_ANSWER_VALUES", 10),
        stand_in(lambda _code: (0, "", b'{"topicList": [' + b"0," * 20 + b"0]}")) as address,
    ):
        assert "22 values, over the limit of 10" in failure_of(address)


def test_an_answer_that_is_too_large_is_refused_before_it_is_read() -> None:
    with mock.patch.object(rocketmq, "MAX_ANSWER_BYTES", 100), stand_in(lambda _code: (0, "", bytes(200))) as address:
        assert "ValueError('a frame of " in failure_of(address)


def test_an_answer_that_comes_byte_by_byte_is_given_up_after_a_minute() -> None:
    clock = VirtualClock()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1_000)
                connection.sendall(struct.pack(">II", MAX_ANSWER_BYTES, 5_000))
                while True:  # until the other side closes, however late it begins to wait
                    clock.advance(10.0)
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        failure = failure_of(f"127.0.0.1:{listener.getsockname()[1]}", clock)
        thread.join(10)
    assert "its answer was not whole after 60 s" in failure


def test_a_long_remark_is_cut() -> None:
    with stand_in(lambda _code: (1, "x" * 100_000, b"")) as address:
        assert len(failure_of(address)) < 1_100


def found(namesrv: NamesrvProcess, exit_code: int) -> list[str]:
    code, rows = examined(namesrv.endpoint)
    assert code == exit_code, rows
    return [row["what"] for row in rows]


def test_a_topic_that_carries_no_messages_is_none_that_has_lost_its_writable_queue(own_namesrv: NamesrvProcess) -> None:
    of_the_group = topic_config("rmq_sys_SYNC_BROKER_MEMBER_broker-a", 1, perm=1)
    with RemotingClient(address_of(own_namesrv)) as broker:
        register(broker, ["TopicTest", of_the_group])
        assert found(own_namesrv, 0) == []
        register(broker, [topic_config("TopicTest", perm=4), of_the_group])
        assert found(own_namesrv, FOUND) == ["1 topic has no writable queue with a master: TopicTest"]
