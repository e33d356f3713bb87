"""Brokers that register in parts, one topic at a time or compressed, at two of these name servers, which restart."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.rocketmq.conftest import REGISTERED_SECONDS, Pair, groups_of, wait_until_registered
from tests.support.programs.agents import NEVER_SCAN, Agent
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.rocketmq_programs.maven import OLD
from tests.support.rocketmq_programs.programs import ApacheNamesrv, Broker, Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
TRIES = 5
COMPRESSED = ("compressedRegister=true",)
ALL_TOPICS, ROUTE = 206, 105


def topics_of(address: str) -> set[str]:
    with RemotingClient(address) as client:
        return set(client.ask(ALL_TOPICS).json["topicList"])


def make_topic(shell: Shell, pair: Pair, broker: Broker, topic: str) -> None:
    """Makes a topic at a broker, which tells its name servers of it at once."""
    assert "success" in shell.mqadmin(pair.both, "updateTopic", "-b", broker.addr, "-t", topic, "-r", "2", "-w", "2")


@pytest.mark.usefixtures("broker")
def test_a_table_that_comes_in_parts_is_whole(pair: Pair, other_apache: ApacheNamesrv) -> None:
    everywhere = [other_apache.addr, *pair.addresses]

    def topics_if_alike() -> set[str]:
        of_apache, *of_ours = map(topics_of, everywhere)  # Apache's has its parts one by one, too
        return of_apache if of_ours == [of_apache, of_apache] else set()

    found = eventually(topics_if_alike, lambda topics: "broker-c" in topics and len(topics) > 10, REGISTERED_SECONDS)
    assert "TBW102" in found


def test_a_topic_that_is_registered_alone_is_there_at_once(pair: Pair, broker: Broker, shell: Shell) -> None:
    def told(topic: str) -> list[int]:
        """How often each name server saw a topic alone."""
        return [sum(line["topic"] == topic for line in each.events("topic_registered")) for each in pair.processes]

    for number in range(TRIES):
        topic = f"Alone-{number}"
        make_topic(shell, pair, broker, topic)
        for namesrv in pair.processes:
            with namesrv.connect() as client:
                eventually(lambda: client.addrs(topic), lambda addrs: addrs == {0: broker.addr})  # noqa: B023
        # The broker may just be sending its whole table, and the topic with it: then its own word is nothing new.
        with suppress(AssertionError):
            eventually(lambda: told(topic), [1, 1].__eq__, within_seconds=5)  # noqa: B023
            break
    assert told(topic) == [1, 1]


def test_the_mappings_of_a_static_topic_are_in_our_routes_as_in_apaches(
    pair: Pair, other_apache: ApacheNamesrv, broker: Broker, home: Path, shell: Shell
) -> None:
    """Also in those of a name server that knows the broker from an agent which reads the broker's files."""

    def mappings(address: str) -> object:
        with RemotingClient(address) as client:
            answer = client.ask(ROUTE, {"topic": "Static", "acceptStandardJsonOnly": "true"})
        return answer.json.get("topicQueueMappingByBroker") if answer.code == 0 else None

    def mapped() -> tuple[object, str]:
        """Makes the topic, again where the broker has failed: mqadmin prints its mappings before it asks the broker."""
        said = shell.mqadmin(pair.both, "updateStaticTopic", "-t", "Static", "-qn", "4", "-b", "broker-c")
        assert "The new mapping data" in said, said
        return mappings(other_apache.addr), said

    of_apache, _ = eventually(mapped, lambda found: bool(found[0]), REGISTERED_SECONDS)
    for address in pair.addresses:
        eventually(lambda: mappings(address), lambda found: found == of_apache, REGISTERED_SECONDS)  # noqa: B023
    with pair.processes[0].connect() as client:
        route = client.route("Static")
    assert route is not None
    assert list(route.queue_datas[0].mapping.topic_queue_ids) == [0, 1, 2, 3]
    topics = home / "broker-c-0" / "store" / "config" / "topics.json"
    with (
        NamesrvProcess(*NEVER_SCAN) as namesrv,
        namesrv.connect() as client,
        Agent(str(namesrv.endpoint), "--broker-name", "broker-c", broker_addr=broker.addr, topics=topics),
    ):
        by_agent = eventually(lambda: client.route("Static"))
    assert by_agent is not None
    assert by_agent.queue_datas == route.queue_datas
    assert "sent 12" in shell.messages("send", pair.both, "Static", "12")
    assert "received 12" in shell.messages("receive", pair.both, "Static", "12")


def test_no_message_is_lost_while_both_name_servers_are_restarted(pair: Pair, broker: Broker, shell: Shell) -> None:
    make_topic(shell, pair, broker, "Traffic")
    shell.messages("start", pair.both, "Traffic")
    try:
        for number in range(2):
            shell.messages("progress")
            pair.restart(number)
            with pair.processes[number].connect() as client:
                # From its file at first, and the broker confirms it.
                eventually(lambda: client.addrs("Traffic"), lambda addrs: addrs == {0: broker.addr}, 5)
            shell.messages("progress")
    finally:
        said = shell.messages("stop")
    assert "received all" in said


def test_a_restart_whose_first_word_is_an_increment_misses_no_topic(pair: Pair, broker: Broker, shell: Shell) -> None:
    shell.mqadmin(pair.both, "updateBrokerConfig", "-b", broker.addr, "-k", "enableSingleTopicRegister", "-v", "false")
    before = topics_of(pair.addresses[1])
    made = 0

    def heard() -> set[str]:
        nonlocal made
        made += 1
        make_topic(shell, pair, broker, f"Increment-{made}")
        return topics_of(pair.addresses[0])

    def first_word() -> set[str]:
        pair.restart(0, forgets=True)
        if known := topics_of(pair.addresses[0]):
            return known
        return eventually(heard, within_seconds=REGISTERED_SECONDS)

    # The broker may come with its whole table by chance.
    eventually(first_word, lambda topics: len(topics) < 3, within_seconds=REGISTERED_SECONDS)
    eventually(lambda: before - topics_of(pair.addresses[0]), lambda missing: missing == set(), REGISTERED_SECONDS)


def test_brokers_that_compress_their_tables_are_read(pair: Pair, home: Path, shell: Shell) -> None:
    with (
        Broker(home, pair.both, "broker-d", settings=COMPRESSED) as new,
        Broker(home, pair.both, "broker-e", release=OLD, settings=COMPRESSED) as old,
        pair.processes[0].connect() as client,
    ):
        for broker, name in ((new, "broker-d"), (old, "broker-e")):
            wait_until_registered(client, broker.listening(), name)
            assert name in groups_of(client, "TBW102")
            shell.mqadmin(pair.both, "updateTopic", "-b", broker.addr, "-t", f"At-{name}")
            eventually(lambda: client.addrs(f"At-{name}"), lambda addrs: addrs == {0: broker.addr})  # noqa: B023
    for namesrv in pair.processes:
        assert namesrv.events("internal_defect") == []
