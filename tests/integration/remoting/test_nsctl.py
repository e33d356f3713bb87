"""nsctl on RocketMQ's protocol: ``compare-rocketmq``, and what a drained broker still holds."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import Result

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from nsctl import rocketmq
from nsctl.commands import brokers, compare
from nsctl.rocketmq import MAX_ANSWER_BYTES, RocketmqClient
from nsctl.session import FOUND, REFUSED, UNREACHABLE, USAGE
from tests.integration.remoting.conftest import LOOPBACK, address_of
from tests.support.programs import nsctl_runs
from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient, broker_fields, register, server_tls, stand_in, topic_config
from tests.support.secured.certificates import Authority
from tests.support.secured.fleet import Place


def compared(namesrv: NamesrvProcess, rocketmq: str, exit_code: int, *flags: str) -> list[dict[str, Any]]:
    return nsctl_runs.rows("compare-rocketmq", rocketmq, "--namesrv", namesrv.endpoint, *flags, exit_code=exit_code)


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
        319: "orderMessageEnable=false\nscanNotActiveBrokerInterval=7",
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


def test_over_tls_clusters_and_brokers_that_sort_in_opposite_ways_do_not_differ(
    own_namesrv: NamesrvProcess, authority: Authority
) -> None:
    tls, flags = server_tls(authority.sign_server()), ("--rocketmq-tls-ca", str(authority.path))
    there = stand_in(rocketmq_answers(TWO_CLUSTERS, ["orders", "payments"]), tls)
    with RemotingClient(address_of(own_namesrv)) as client, there as rocketmq:
        register_groups(client, TWO_CLUSTERS, ["orders", "payments"])
        assert compared(own_namesrv, rocketmq, 0, *flags) == []


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


def test_only_the_first_differences_of_each_kind_are_shown(own_namesrv: NamesrvProcess) -> None:
    there = stand_in(rocketmq_answers(TWO_CLUSTERS, ["orders"]))
    command = ("compare-rocketmq", "--namesrv", own_namesrv.endpoint, "-o", "json")
    with there as rocketmq, mock.patch.object(compare, "MOST_DIFFERENCES", 1):
        result = nsctl_runs.run(*command, rocketmq, exit_code=FOUND)
    assert [row["broker"] for row in json.loads(result.stdout)] == ["broker-b"]
    assert result.stderr.endswith("(of each kind 1 at most)\n")


def test_differences_that_a_decision_explains_are_of_a_class_of_their_own(own_namesrv: NamesrvProcess) -> None:
    there = stand_in(rocketmq_answers(TWO_CLUSTERS, ["held", "orders", "payments", *OWN]))
    with RemotingClient(address_of(own_namesrv)) as client, there as rocketmq:
        register_groups(client, TWO_CLUSTERS, ["held", "orders", "payments", *OWN])

        whom = ("--namesrv", own_namesrv.endpoint)
        nsctl_runs.run("delete-topic", "held", "--hold", "--force", *whom)
        nsctl_runs.run("drain", "broker-a", "--for", "1h", *whom)
        drained, held = sorted(compared(own_namesrv, rocketmq, 0), key=lambda row: str(row["topic"]))
        assert {row["part"] for row in (held, drained)} == {"planned"}
        assert held["clients_of_rocketmq"] == "still find held"
        assert (drained["cluster"], drained["broker"]) == ("B", "broker-a")
        assert drained["until"].startswith("2")
        assert drained["clients_of_rocketmq"] == "keep writing to broker-a: 2 topics (orders, payments)"
        note = nsctl_runs.run("compare-rocketmq", rocketmq, *whom).stderr
        assert "only planned differences between here and" in note
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


@pytest.mark.parametrize(
    "body",
    [
        b'{"brokerAddrTable": {"broker-a": {}}}',
        b'{"brokerAddrTable": {"broker-a": {"cluster": "c", "brokerName": "b", "brokerAddrs": {"first": "a:1"}}}}',
        b'{"brokerAddrTable": {"broker-a": {"cluster": 1, "brokerName": [], "brokerAddrs": {}}}}',
        b'{"brokerAddrTable": []}',
        b"[" * 100_000,
    ],
    ids=["fields missing", "an id that is none", "other kinds", "a list", "too deep"],
)
def test_a_body_that_is_none_of_rocketmq_is_one_line(namesrv: NamesrvProcess, body: bytes) -> None:
    with stand_in(lambda _code: (0, "", body)) as address:
        command = ("compare-rocketmq", address, "--namesrv", namesrv.endpoint)
        [line] = nsctl_runs.run(*command, exit_code=UNREACHABLE).stderr.splitlines()
    assert "something else than RocketMQ's protocol" in line


def failure_of(address: str, timeout_seconds: float = 20.0) -> str:
    """Why the topics of a name server of RocketMQ cannot be read."""
    with RocketmqClient(Endpoint.parse(address), timeout_seconds) as server, pytest.raises(CallError) as caught:
        server.topics()
    return str(caught.value)


def test_a_long_answer_is_refused_before_it_is_read_and_a_long_remark_cut() -> None:
    with stand_in(lambda _code: (1, "x" * 100_000, b"")) as address:
        assert len(failure_of(address)) < 1_100
    with mock.patch.object(rocketmq, "MAX_ANSWER_BYTES", 100), stand_in(lambda _code: (0, "", bytes(200))) as address:
        assert "ValueError('a frame of " in failure_of(address)


def test_an_answer_that_comes_byte_by_byte_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1_000)
                connection.sendall(struct.pack(">II", MAX_ANSWER_BYTES, 5_000))
                while True:  # until the other side closes
                    connection.sendall(b" ")
                    threading.Event().wait(0.05)  # less than the time for the answer

        thread = threading.Thread(target=drip)
        thread.start()
        failure = failure_of(f"127.0.0.1:{listener.getsockname()[1]}", 1.0)
        thread.join(10)
    assert "did not answer: " in failure


CALM = {"putTps": "0.0 0.0 0.0", "scheduleMessageOffset_1": "7,7", "timerCongestNum": "0", "timerOffsetBehind": "0"}


class Broker:
    """A broker that answers as RocketMQ does: queues are keys of an object, without quotes."""

    def __init__(self, name: str = "broker-a") -> None:
        self.name = name
        self.lags: dict[tuple[str, str], list[float]] = {("billing", "orders"): [0, 0]}
        """Of each queue, by consumer group and topic."""
        self.runtime: Mapping[str, str] = CALM
        self.asked: list[int] = []

    def answer(self, code: int) -> tuple[int, str, bytes]:
        self.asked.append(code)
        if code == 28:
            return 0, "", json.dumps({"table": self.runtime}).encode()
        groups = ",".join(
            f'{{{json.dumps(group)}:[{{"consumeTps":0.0,"offsetTable":{{{self._queues(topic, lags)}}}}}]}}'
            for (group, topic), lags in self.lags.items()
        )
        return 0, "", f'{{"brokerAddr":"x","consumeStatsList":[{groups}],"totalDiff":0}}'.encode()

    def _queues(self, topic: str, lags: list[float]) -> str:
        return ",".join(
            f'{{"brokerName":{json.dumps(self.name)},"queueId":{number},"topic":{json.dumps(topic)}}}:'
            f'{{"brokerOffset":{json.dumps(100 + lag)},"consumerOffset":100,"lastTimestamp":0,"pullOffset":100}}'
            for number, lag in enumerate(lags)
        )


@contextmanager
def asked(namesrv: NamesrvProcess, broker: Broker) -> Iterator[str]:
    """A broker that is registered and listens."""
    with stand_in(broker.answer) as address, RemotingClient(address_of(namesrv)) as client:
        register(client, ["orders"], broker_fields(addr=address))
        yield address


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def run(namesrv: NamesrvProcess, *arguments: str, exit_code: int = 0, answer: str = "") -> Result:
    command = ("drain-status", *arguments, "-o", "json", "-n", namesrv.endpoint)
    return nsctl_runs.run(*command, exit_code=exit_code, answer=answer)


def test_an_empty_broker_is_said_to_be_empty_and_where_it_is_not_drained(namesrv: NamesrvProcess) -> None:
    broker = Broker()
    with asked(namesrv, broker) as address:
        result = run(namesrv, "broker-a", "--yes")
        assert json.loads(result.stdout) == []
        assert f"broker-a at {address} is empty" in result.stderr
        assert "broker-a is not drained there" in result.stderr
        nsctl_runs.run("drain", "broker-a", "--force", "-n", namesrv.endpoint)
        broker.runtime = CALM | {"putTps": "  "}  # it has just started
        told = run(namesrv, "DefaultCluster/broker-a", "--yes").stderr
        assert f"broker-a at {address} is empty" in told
        assert "does not know yet whether it is written to" in told
        assert "is not drained there" not in told


def test_messages_that_wait_are_shown_topics_of_applications_first(namesrv: NamesrvProcess) -> None:
    broker = Broker()
    broker.lags |= {("billing", "orders"): [2, 3], ("billing", "%RETRY%billing"): [1], ("gone", 'odd{"}'): [4]}
    broker.runtime = CALM | {"scheduleMessageOffset_3": "5,11", "timerCongestNum": "2", "putTps": "1.5 0.1 0.0"}
    with asked(namesrv, broker):
        result = run(namesrv, "broker-a", "--yes", exit_code=FOUND)
        rows = json.loads(result.stdout)
        assert [(row["what"], row.get("topic"), row.get("group"), row["messages"]) for row in rows] == [
            ("consumer", 'odd{"}', "gone", 4),
            ("consumer", "orders", "billing", 5),
            ("consumer", "%RETRY%billing", "billing", 1),
            ("delay", None, None, 6),
            ("timer", None, None, 2),
        ]
        assert ": 18 messages left" in result.stderr
        assert "was written to during the last 10 s: 1.5 messages per second" in result.stderr
        ignoring = run(namesrv, "broker-a", "--yes", "--ignore", "gone", "--ignore", "billing", exit_code=FOUND)
        assert [row["what"] for row in json.loads(ignoring.stdout)] == ["delay", "timer"]


def test_only_an_address_that_the_operator_named_or_confirmed_is_called(namesrv: NamesrvProcess) -> None:
    broker = Broker()
    with asked(namesrv, broker) as address:
        told = run(namesrv, "broker-a", exit_code=USAGE).stderr
        assert f"allow it with --broker-addr {address}" in told
        with mock.patch.object(brokers, "sys"):
            run(namesrv, "broker-a", answer="n\n", exit_code=USAGE)
            assert broker.asked == []
            run(namesrv, "broker-a", answer="y\n")
        with stand_in(Broker().answer) as other:
            seen = len(broker.asked)
            run(namesrv, "broker-a", "--broker-addr", other)
            assert len(broker.asked) == seen, "the registered one was not called"


def test_what_cannot_be_asked_is_said(namesrv: NamesrvProcess, tmp_path: Path) -> None:
    run(namesrv, "nobody", "--yes", exit_code=REFUSED)
    run(namesrv, "broker-*", "--yes", exit_code=USAGE)
    run(namesrv, "broker-a", "--broker-addr", "nowhere", exit_code=USAGE)
    run(namesrv, "broker-a", "--broker-addr", "127.0.0.1:1", exit_code=UNREACHABLE)
    endless = Broker()
    endless.lags[("billing", "orders")] = [float("inf")]
    for answer, said in (
        (lambda _code: (16, "no permission", b""), "answered code 16: no permission"),
        (endless.answer, "something else than RocketMQ's protocol: OverflowError"),
        (Broker("broker-z").answer, ": UNAVAILABLE: is broker-z and not broker-a"),
    ):
        with stand_in(answer) as address:
            result = run(namesrv, "broker-a", "--broker-addr", address, exit_code=UNREACHABLE)
        assert (said in result.stderr, result.stdout) == (True, ""), result.stderr


def test_a_broker_that_takes_nothing_but_tls_is_asked(namesrv: NamesrvProcess, authority: Authority) -> None:
    checked = ("--rocketmq-tls-ca", str(authority.path))
    with stand_in(Broker().answer, server_tls(authority.sign_server())) as address:
        asked_here = ("broker-a", "--broker-addr", address)
        run(namesrv, *asked_here, *checked)
        assert "give --rocketmq-tls-ca" in run(namesrv, *asked_here, exit_code=UNREACHABLE).stderr
        told = run(namesrv, *asked_here, "--rocketmq-tls-ca", str(namesrv.endpoint), exit_code=USAGE).stderr
        assert "No such file or directory" in told
    with stand_in(Broker().answer) as address:
        told = run(namesrv, "broker-a", "--broker-addr", address, *checked, exit_code=UNREACHABLE).stderr
    assert "leave out --rocketmq-tls-ca" in told


@pytest.mark.parametrize(
    ("names", "of_other_authority", "said"),
    [(["broker.example"], False, "IP address mismatch"), ([], True, "unable to get local issuer certificate")],
)
def test_a_broker_with_a_wrong_certificate_is_told_nothing(
    namesrv: NamesrvProcess, authority: Authority, tmp_path: Path, names: list[str], of_other_authority: bool, said: str
) -> None:
    broker, signs = Broker(), Authority(tmp_path, "Other CA") if of_other_authority else authority
    shown = signs.sign("broker", names, ips=[] if names else ["127.0.0.1"])
    with stand_in(broker.answer, server_tls(shown)) as address:
        command = ("broker-a", "--broker-addr", address, "--rocketmq-tls-ca", str(authority.path))
        told = run(namesrv, *command, exit_code=UNREACHABLE).stderr
    assert (said in told, broker.asked) == (True, []), told


def test_the_certificate_for_name_servers_is_shown_to_a_broker_that_asks_for_one(tmp_path: Path) -> None:
    place = Place.make(tmp_path)
    admin, ca = place.callers["admin"], ("--rocketmq-tls-ca", str(place.authority.path))
    pair = ("--tls-cert", str(admin.certificate), "--tls-key", str(admin.key))
    to_servers = ("--tls-ca", str(place.authority.path), *pair)
    with (
        NamesrvProcess(*place.flags("mTLS")) as namesrv,
        stand_in(Broker().answer, server_tls(place.server, place.authority)) as address,
    ):
        told = run(namesrv, "broker-a", "--broker-addr", address, *ca, *to_servers).stderr
    assert f"broker-a at {address} is empty" in told


def test_with_wait_it_is_asked_again_until_it_is_empty(namesrv: NamesrvProcess) -> None:
    class Consumed(Broker):
        def answer(self, code: int) -> tuple[int, str, bytes]:
            self.lags = {("billing", "orders"): [3 - self.asked.count(317)]}
            return super().answer(code)

    broker = Consumed()
    with asked(namesrv, broker), mock.patch.object(brokers, "PAUSE_SECONDS", 0.01):
        run(namesrv, "broker-a", "--yes", "--wait", "1h")
    assert broker.asked.count(317) == 4
