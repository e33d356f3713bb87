"""``nsctl drained``: what a drained broker still holds, asked over RocketMQ's protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner, Result

from nsctl.cli import app
from nsctl.commands import drained
from nsctl.session import FOUND, REFUSED, UNREACHABLE, USAGE
from tests.integration.remoting.conftest import address_of
from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient, broker_fields, register, server_tls, stand_in
from tests.support.secured.certificates import Authority
from tests.support.secured.fleet import Place

CALM = {"putTps": "0.0 0.0 0.0", "scheduleMessageOffset_1": "7,7", "timerCongestNum": "0", "timerOffsetBehind": "0"}


class Broker:
    """A broker that answers as RocketMQ does: queues are keys of an object, without quotes."""

    def __init__(self, name: str = "broker-a") -> None:
        self.name = name
        self.lags: dict[tuple[str, str], list[int]] = {("billing", "orders"): [0, 0]}
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

    def _queues(self, topic: str, lags: list[int]) -> str:
        return ",".join(
            f'{{"brokerName":{json.dumps(self.name)},"queueId":{number},"topic":{json.dumps(topic)}}}:'
            f'{{"brokerOffset":{100 + lag},"consumerOffset":100,"lastTimestamp":0,"pullOffset":100}}'
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


def run(namesrv: NamesrvProcess, *arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(app, ["drained", *arguments, "-o", "json", "-n", str(namesrv.endpoint)], input=text)


def rows(result: Result, exit_code: int) -> list[dict[str, Any]]:
    assert result.exit_code == exit_code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_an_empty_broker_is_said_to_be_empty_and_where_it_is_not_drained(namesrv: NamesrvProcess) -> None:
    with asked(namesrv, Broker()) as address:
        result = run(namesrv, "broker-a", "--yes")
        assert rows(result, 0) == []
        assert f"broker-a at {address} is empty" in result.stderr
        assert "broker-a is not drained there" in result.stderr
        CliRunner().invoke(app, ["drain", "broker-a", "--force", "-n", str(namesrv.endpoint)])
        assert "is not drained there" not in run(namesrv, "DefaultCluster/broker-a", "--yes").stderr


def test_messages_that_wait_are_shown_topics_of_applications_first(namesrv: NamesrvProcess) -> None:
    broker = Broker()
    broker.lags |= {("billing", "orders"): [2, 3], ("billing", "%RETRY%billing"): [1], ("gone", 'odd{"}'): [4]}
    broker.runtime = CALM | {"scheduleMessageOffset_3": "5,11", "timerCongestNum": "2", "putTps": "1.5 0.1 0.0"}
    with asked(namesrv, broker):
        result = run(namesrv, "broker-a", "--yes")
        found = [(row["what"], row.get("topic"), row.get("group"), row["messages"]) for row in rows(result, FOUND)]
        assert found == [
            ("consumer", 'odd{"}', "gone", 4),
            ("consumer", "orders", "billing", 5),
            ("consumer", "%RETRY%billing", "billing", 1),
            ("delay", None, None, 6),
            ("timer", None, None, 2),
        ]
        assert ": 18 messages left" in result.stderr
        assert "was written to during the last 10 s: 1.5 messages per second" in result.stderr
        ignoring = run(namesrv, "broker-a", "--yes", "--ignore", "gone", "--ignore", "billing")
        assert [row["what"] for row in rows(ignoring, FOUND)] == ["delay", "timer"]


def test_a_broker_that_has_just_started_does_not_know_its_rate_of_writes_yet(namesrv: NamesrvProcess) -> None:
    broker = Broker()
    broker.runtime = CALM | {"putTps": "  "}
    with asked(namesrv, broker) as address:
        result = run(namesrv, "broker-a", "--yes")
    assert rows(result, 0) == []
    assert f"broker-a at {address} is empty" in result.stderr
    assert "does not know yet whether it is written to" in result.stderr


def test_only_an_address_that_the_operator_named_or_confirmed_is_called(namesrv: NamesrvProcess) -> None:
    broker = Broker()
    with asked(namesrv, broker) as address:
        result = run(namesrv, "broker-a")
        assert (result.exit_code, broker.asked) == (USAGE, [])
        assert f"allow it with --broker-addr {address}" in result.stderr
        with mock.patch.object(drained, "at_terminal", return_value=True):
            assert (run(namesrv, "broker-a", text="n\n").exit_code, broker.asked) == (USAGE, [])
            assert run(namesrv, "broker-a", text="y\n").exit_code == 0
        with stand_in(Broker().answer) as other:
            seen = len(broker.asked)
            assert run(namesrv, "broker-a", "--broker-addr", other).exit_code == 0
            assert len(broker.asked) == seen, "the registered one was not called"


def test_a_broker_of_another_name_is_no_answer(namesrv: NamesrvProcess) -> None:
    with asked(namesrv, Broker("broker-z")) as address:
        result = run(namesrv, "broker-a", "--yes")
        assert (result.exit_code, result.stdout) == (UNREACHABLE, "")
        assert f"{address}: UNAVAILABLE: is broker-z and not broker-a" in result.stderr


def test_what_cannot_be_asked_is_said(namesrv: NamesrvProcess, tmp_path: Path) -> None:
    assert run(namesrv, "nobody", "--yes").exit_code == REFUSED
    assert run(namesrv, "broker-*", "--yes").exit_code == USAGE
    assert run(namesrv, "broker-a", "--broker-addr", "nowhere").exit_code == USAGE
    assert run(namesrv, "broker-a", "--broker-addr", "127.0.0.1:1").exit_code == UNREACHABLE
    with stand_in(lambda _code: (16, "no permission", b"")) as address:
        result = run(namesrv, "broker-a", "--broker-addr", address)
    assert (result.exit_code, "answered code 16: no permission" in result.stderr) == (UNREACHABLE, True)


def test_a_broker_that_takes_nothing_but_tls_is_asked(namesrv: NamesrvProcess, authority: Authority) -> None:
    checked = ("--rocketmq-tls-ca", str(authority.path))
    with stand_in(Broker().answer, server_tls(authority.sign_server())) as address:
        asked_here = ("broker-a", "--broker-addr", address)
        assert run(namesrv, *asked_here, *checked).exit_code == 0
        result = run(namesrv, *asked_here)
        assert (result.exit_code, "give --rocketmq-tls-ca" in result.stderr) == (UNREACHABLE, True), result.stderr
        result = run(namesrv, *asked_here, "--rocketmq-tls-ca", str(namesrv.endpoint))
        assert (result.exit_code, "No such file or directory" in result.stderr) == (USAGE, True), result.stderr
    with stand_in(Broker().answer) as address:
        result = run(namesrv, "broker-a", "--broker-addr", address, *checked)
    assert (result.exit_code, "leave out --rocketmq-tls-ca" in result.stderr) == (UNREACHABLE, True), result.stderr


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
        result = run(namesrv, "broker-a", "--broker-addr", address, "--rocketmq-tls-ca", str(authority.path))
    assert (result.exit_code, said in result.stderr, broker.asked) == (UNREACHABLE, True, []), result.stderr


def test_the_certificate_for_name_servers_is_shown_to_a_broker_that_asks_for_one(tmp_path: Path) -> None:
    place = Place.make(tmp_path)
    admin, ca = place.callers["admin"], ("--rocketmq-tls-ca", str(place.authority.path))
    pair = ("--tls-cert", str(admin.certificate), "--tls-key", str(admin.key))
    to_servers = ("--tls-ca", str(place.authority.path), *pair)
    with (
        NamesrvProcess(*place.flags("mTLS")) as namesrv,
        stand_in(Broker().answer, server_tls(place.server, place.authority)) as address,
    ):
        result = run(namesrv, "broker-a", "--broker-addr", address, *ca, *to_servers)
    assert (result.exit_code, f"broker-a at {address} is empty" in result.stderr) == (0, True), result.stderr


def test_with_wait_it_is_asked_again_until_it_is_empty(namesrv: NamesrvProcess) -> None:
    broker = Broker()
    broker.lags = {("billing", "orders"): [3]}

    def consume(_seconds: float) -> None:
        [lags] = broker.lags.values()
        lags[0] -= 1

    with asked(namesrv, broker), mock.patch.object(drained, "pause", consume):
        assert rows(run(namesrv, "broker-a", "--yes", "--wait", "1h"), 0) == []
    assert broker.asked.count(317) == 4
