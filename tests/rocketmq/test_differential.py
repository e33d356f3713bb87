"""Random registrations: what Apache's name servers of 5.5.0 and 4.9.7 serve, this one serves alike.

``REGISTRATION_SEEDS="7 8"`` replaces the seeds. A failure names its seed and shows the registration.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.rocketmq.conftest import ALLOWED, address_of
from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient, packed_body
from tests.support.rocketmq_programs.maven import OLD
from tests.support.rocketmq_programs.programs import ApacheNamesrv

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
SEEDS = [int(seed) for seed in os.environ.get("REGISTRATION_SEEDS", "1 2 3").split()]
REGISTRATIONS = 200
"""Of each seed."""
CHANGED = 0.5
"""Part of those that all three take whole that come again with other numbers."""
SHOWN, SHOWN_BYTES = 5, 1_000
LOWEST_PORT, PORTS = 20_000, 40_000
WRITE = 2
UNSAID = (None, "", "null")
REGISTER, UNREGISTER, ROUTE, CLUSTERS, TOPICS = 103, 104, 105, 106, 206

TOPIC_NAMES = (
    *("orders", "%RETRY%group", "%RETRY%group+orders", "%DLQ%group", "订单", "a b", "orders/eu", "x@y", "a:b", "café"),
    *("q|r", 'qu"ote', "back\\slash", "单" * 130, "😀", "n" * 140, "%RETRY%" + "g" * 255, "{x}", "[y]", "<z>"),
    *("tab\t", "line\nline", "\u202eright", "\x7f", "n" * 400),
)
GROUP_NAMES = (
    *("broker", "broker-a.example.com", "группа", "two words", "x/y", "b@c", "b*", "b" * 200, "b" * 300, "b\n", ""),
)
GOOD_HOSTS = (
    *("10.0.0.1", "broker.example.com", "broker_a", "fd00::1:7a", "::1", "[fd00::1]", "fe80::1%eth0"),
    *("[fe80::1%eth0]", "localhost"),
)
ODD_HOSTS = ("", "two words", "http://x", "[x]")
MAX_TOPIC_BYTES, MAX_NAME_BYTES, MAX_QUEUES = 400, 255, 65_535
QUEUES = ("readQueueNums", "writeQueueNums")
NUMBERS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(QUEUES, (4, 8, 16, 1, 0, 1024, MAX_QUEUES, MAX_QUEUES + 1, 100_000, -1)),
    "perm": (6, 6, 4, 2, 7, 0, 1, 14, 60, -1),
    "topicSysFlag": (0, 0, 1, 2, 3, -1, 2**31 - 1),
}


@dataclass(frozen=True)
class Sent:
    """A registration."""

    fields: dict[str, Any]
    body: bytes
    numbers: dict[str, dict[str, Any]]
    """Of each topic."""
    version: int

    @property
    def is_odd(self) -> bool:
        """Whether docs/deviations.md has it refused."""
        names = self.fields["clusterName"], self.fields["brokerName"], self.fields.get("__ZONE_NAME") or "none"
        host, _, port = self.fields["brokerAddr"].rpartition(":")
        return any(breaks_rule(name, MAX_NAME_BYTES) for name in names) or host not in GOOD_HOSTS or port == "0"

    def is_odd_topic(self, topic: str) -> bool:
        """Whether docs/deviations.md has one of its topics passed over."""
        queues = (self.numbers[topic].get(name) for name in QUEUES)
        too_many = any(type(number) is int and not 0 <= number <= MAX_QUEUES for number in queues)
        return breaks_rule(topic, MAX_TOPIC_BYTES) or too_many


def breaks_rule(name: str, most: int) -> bool:
    """Whether a name breaks the rule of names."""
    return not name.isprintable() or not 0 < len(name.encode()) <= most


def written(random: Random, value: object, *, is_rocketmq: bool) -> bytes:
    """A value in JSON as RocketMQ writes it, or in one of the ways of other libraries."""
    blank = "" if is_rocketmq else random.choice(["", " ", "\n\t"])
    forms = [int] if is_rocketmq or random.random() < 0.5 else [int, str, float]

    def varied(value: Any) -> Any:
        if isinstance(value, dict):
            members = [(key, varied(inner)) for key, inner in value.items()]
            return dict(members if is_rocketmq else random.sample(members, len(members)))
        if isinstance(value, list):
            return [varied(inner) for inner in value]
        return random.choice(forms)(value) if type(value) is int and value >= 0 else value

    def escaped(text: re.Match[str]) -> str:
        units = json.loads(text[0]).encode("utf-16-be")
        return '"' + "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)) + '"'

    escapes = random.choice(["none", "ascii", "all"])
    text = json.dumps(varied(value), ensure_ascii=escapes != "none", separators=(f",{blank}", f":{blank}"))
    if is_rocketmq:  # fastjson writes numbers as keys without quotes
        text = re.sub(r'(?<=[{,])"(\d+)":', r"\1:", text)
    return (re.sub(r'"(?:[^"\\]|\\.)*"', escaped, text) if escapes == "all" else text).encode()


def random_registration(random: Random, number: str, port: int) -> Sent:
    """A registration with a number in all of its names."""
    some = random.random
    good = some() < 0.8
    host = random.choice(GOOD_HOSTS if some() < 0.93 else ODD_HOSTS)
    port = port if some() < 0.97 else 0
    fields: dict[str, Any] = {
        "brokerName": f"broker-{number}" if good else with_number(random.choice(GROUP_NAMES), number),
        "clusterName": "DefaultCluster" if good else random.choice(GROUP_NAMES),
        "brokerAddr": f"{host}:{port}",
        "haServerAddr": f"{random.choice(GOOD_HOSTS if good else ODD_HOSTS)}:{port}",
        "brokerId": random.choice(["0", "0", "0", "0", "1", "2", "-1", "007", "+0", 0, "9223372036854775807", "-5"]),
        "compressed": "false",
    }
    is_rocketmq = some() < 0.3
    version = random.choice([513, 513, 407, 401, 0])
    if version == 513 and some() < 0.8:
        fields["enableActingMaster"] = random.choice(["false", "true", "TRUE", "", "x"])
        fields["heartbeatTimeoutMillis"] = random.choice(["600000", "", "x", "99999999999999999999"])
        if some() < 0.2:
            fields["__ZONE_NAME"] = random.choice(["zone-a", "зона", "a zone", ""])
    if some() < 0.1 and version:
        topics = [f"packed-{number}-{which}" for which in range(random.randint(2, 5))]
        fields["compressed"] = "true"
        sent = {topic: dict.fromkeys(QUEUES, 4) for topic in topics}
        return Sent(fields | {"bodyCrc32": "0"}, packed_body(topics), sent, 407)
    numbers = {f"plain-{number}": random_numbers(random, is_rocketmq=is_rocketmq)}
    for _ in range(random.randint(1, 6)):
        numbers[with_number(random.choice(TOPIC_NAMES), number)] = random_numbers(random, is_rocketmq=is_rocketmq)
    body = random_body(random, numbers, fields["brokerName"], is_rocketmq=is_rocketmq)
    if some() < 0.05:
        body = "\ufeff".encode() + body
    fields["bodyCrc32"] = random.choice([str(zlib.crc32(body) & 0x7FFF_FFFF), "0", "", "x", "99999999999"])
    if fields["bodyCrc32"] == "" and some() < 0.5:
        del fields["bodyCrc32"]
    return Sent(fields, body, numbers, version or 513)


def changed(random: Random, sent: Sent) -> Sent:
    """The same broker with other numbers, as RocketMQ writes them."""
    numbers = {topic: random_numbers(random, is_rocketmq=True) for topic in sent.numbers}
    body = random_body(random, numbers, sent.fields["brokerName"], is_rocketmq=True)
    return Sent(sent.fields | {"bodyCrc32": "0", "compressed": "false"}, body, numbers, 513)


def with_number(name: str, number: str) -> str:
    return f"{name}-{number}" if name else name


def random_numbers(random: Random, *, is_rocketmq: bool) -> dict[str, Any]:
    """What a TopicConfig says of queues: some of it may be missing or null."""
    if is_rocketmq:
        return {name: random.choice(values[:4]) for name, values in NUMBERS.items()}
    said: dict[str, Any] = {name: random.choice(values) for name, values in NUMBERS.items()}
    for name in NUMBERS:
        if random.random() < 0.1:
            del said[name]
        elif random.random() < 0.05:
            said[name] = random.choice([*UNSAID, True, 4.7])
    return said


def random_body(random: Random, numbers: dict[str, dict[str, Any]], broker_name: str, *, is_rocketmq: bool) -> bytes:
    """A RegisterBrokerBody."""
    some = random.random
    table: dict[str, Any] = {}
    for topic, said in numbers.items():
        key = topic if some() < 0.9 else f"key of {len(table)}"
        table[key] = {"order": False, "topicFilterType": "SINGLE_TAG", "topicName": topic, **said}
        if some() < 0.5:
            table[key] |= random.choice([{"attributes": {}}, {"attributes": {"+message.type": "FIFO"}}, {"more": [{}]}])
    version = {"counter": random.randrange(10**9), "timestamp": 1_795_340_540_541}
    if some() < 0.5:
        version["stateVersion"] = 0
    wrapper: dict[str, Any] = {"dataVersion": version, "topicConfigTable": table}
    body: dict[str, Any] = {"topicConfigSerializeWrapper": wrapper}
    if some() < 0.3:
        static = random.choice(list(numbers))
        queues = {queue: queue % 4 for queue in range(random.randint(0, 9))}
        mapping = {"topic": static, "bname": broker_name, "scope": "__global__", "epoch": 1795340517986}
        mapping |= {"totalQueues": 9, "dirty": False, "currIdMap": queues}
        wrapper["topicQueueMappingInfoMap"] = {static: mapping}
        wrapper["topicQueueMappingDetailMap"] = {static: {"topic": static, "hostedQueues": {0: [{"gen": 0}]}}}
    body["filterServerList"] = random.choice([[], None, ["10.0.0.9:1"], ["10.0.0.9:1", "odd", None]])
    if is_rocketmq:
        return written(random, body, is_rocketmq=True)
    wrapper["dataVersion"] = random.choice([version, version, version, None, {}, {"counter": -3}, {"counter": None}])
    for holder in (body, wrapper):
        if some() < 0.2:
            holder["unknown"] = random.choice([None, 1.5, {"deep": [{"er": []}]}, "text"])
    if some() < 0.2:
        del body["filterServerList"]
    if some() < 0.2:
        del wrapper["dataVersion"]
    return written(random, body, is_rocketmq=False)


class Row(NamedTuple):
    """What a route says of one broker."""

    queues: Any
    group: Any
    more: Any
    """Of the group and the static topic, only from version 5 on."""
    filter_servers: Any


class Server(RemotingClient):
    """A name server with the brokers of one seed on one connection."""

    def register(self, sent: Sent) -> int:
        return self.ask(REGISTER, sent.fields, sent.body, version=sent.version).code

    def unregister(self, sent: Sent) -> int:
        return self.ask(UNREGISTER, sent.fields).code

    def row(self, topic: str, sent: Sent) -> Row | None:
        """What its route of a topic says of the broker of a registration; None if it says nothing."""
        if not topic:  # nobody can ask for it
            return None
        answer = self.ask(ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"})
        if answer.code:
            return None
        route, name = answer.json, sent.fields["brokerName"]
        queues = next((one for one in route["queueDatas"] if one["brokerName"] == name), None)
        group = next((one for one in route["brokerDatas"] if one["brokerName"] == name), None)
        if queues is None or group is None:
            return None
        if 0 not in map(int, group["brokerAddrs"]):
            # 5 takes it from groups without a master, this name server only while a slave stands in.
            queues["perm"] &= ~WRITE
        more = {key: group.pop(key, None) or None for key in ("enableActingMaster", "zoneName")}
        more["mapping"] = (route.get("topicQueueMappingByBroker") or {}).get(name)
        servers = route["filterServerTable"].get(sent.fields["brokerAddr"], [])
        return Row(queues, group, more, [server for server in servers if server and ":" in server])

    def topics(self) -> set[str]:
        return set(self.ask(TOPICS).json["topicList"])

    def groups(self) -> dict[str, Any]:
        """Addresses of each group, and the clusters that have it."""
        answer = self.ask(CLUSTERS, version=513).body.decode()
        table = json.loads(with_quoted_numbers(answer))
        clusters = {name: cluster for cluster, names in table["clusterAddrTable"].items() for name in names}
        return {name: (clusters.get(name), one["brokerAddrs"]) for name, one in table["brokerAddrTable"].items()}


def with_quoted_numbers(text: str) -> str:
    """ClusterInfo as standard JSON: the ids of brokers are keys without quotes."""
    return re.sub(r"([{,])(-?\d+):", r'\1"\2":', text)


@pytest.fixture(scope="module")
def addresses(home: Path) -> Iterator[list[str]]:
    """Apache's of 5.5.0, Apache's of 4.9.7, and this one."""
    with (
        ApacheNamesrv(home / "differential-new") as new,
        ApacheNamesrv(home / "differential-old", release=OLD) as old,
        NamesrvProcess(*ALLOWED, "--data-dir", str(home / "differential-data")) as ours,
    ):
        yield [new.listening().addr, old.listening().addr, address_of(ours)]
        assert ours.events("internal_defect") == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_registration_that_apaches_name_servers_take_is_served_alike(addresses: list[str], seed: int) -> None:
    random, found = Random(seed), []
    first_port = LOWEST_PORT + seed * REGISTRATIONS % PORTS
    all_sent = [random_registration(random, f"{seed}-{number}", first_port + number) for number in range(REGISTRATIONS)]
    with ExitStack() as stack:
        servers = new, _, ours = [stack.enter_context(Server(address)) for address in addresses]
        for sent in all_sent:
            codes = [server.register(sent) for server in servers]
            for topic in sent.numbers:
                rows = [server.row(topic, sent) for server in servers]
                if is_different(sent, topic, *rows):
                    found.append((codes, topic, rows, sent))
            is_sound = codes == [0, 0, 0] and not sent.is_odd and not any(map(sent.is_odd_topic, sent.numbers))
            if is_sound and random.random() < CHANGED:
                all_sent.append(changed(random, sent))
        kept = [sent for sent in all_sent if not sent.is_odd]
        names = {sent.fields["brokerName"] for sent in kept} & new.groups().keys()
        topics = {topic for sent in kept for topic in sent.numbers if not sent.is_odd_topic(topic)} & new.topics()
        groups = [{name: server.groups().get(name) for name in names} for server in (new, ours)]
        lost_topics = topics - ours.topics()
        for sent in all_sent:
            for server in servers:
                server.unregister(sent)
        assert not found, report(seed, found)
        assert groups[0] == groups[1]
        assert not lost_topics
        assert ours.groups() == {}


def is_different(sent: Sent, topic: str, new: Row | None, old: Row | None, ours: Row | None) -> bool:
    """Whether the row differs from both of Apache's, and docs/deviations.md does not have it."""
    if sent.is_odd or sent.is_odd_topic(topic):
        return ours is not None
    if any(value in UNSAID for value in sent.numbers[topic].values()):
        new = None  # 5 takes it for 0, 4 and we for the default
    served = [row for row in (new, old) if row is not None]
    if not served:
        return False
    if ours is None:
        return len(served) == 2 or new is not None
    if new is not None and new.more != ours.more:
        return True
    return all(row._replace(more=None) != ours._replace(more=None) for row in served)


def report(seed: int, found: list[tuple[list[int], str, list[Row | None], Sent]]) -> str:
    """What was found, for people."""
    lines = [f"{len(found)} differences with seed {seed}"]
    for codes, topic, rows, sent in found[:SHOWN]:
        lines.append(f"codes {codes}, topic {topic!r}, {sent.fields}")
        lines += [f"  {name}: {row}" for name, row in zip(("5.5.0", "4.9.7", "ours"), rows, strict=True)]
        lines.append(f"  {sent.numbers[topic]} of {sent.body[:SHOWN_BYTES]!r}")
    return "\n".join(lines)
