"""mqadmin of both versions says the same of this name server as of Apache's, which has the same brokers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.rocketmq.conftest import Running
from tests.support.programs.processes import eventually
from tests.support.rocketmq_programs.programs import Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

_CHANGING = (
    (r"127\.0\.0\.1:(NAMESRV|\d+)(?=:|\b)", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+|\b1[789]\d{11}\b", "TIME"),
    (r"^\s+at .*|^.*(DefaultErrorHandler|RemotingCommand|opaque=).*$", ""),
    (r"msgId=\w+|\b[0-9A-F]{32}\b", "MESSAGE"),
    (r"\d+\.\d+(\([^)]*\))?", "FIGURE"),
    # What a group that has ended took a second falls from one question to the next.
    (r"OFFLINE\s+\d+", "OFFLINE FIGURE"),
)
_FIRST_WORDS = {"clusterList": 5}
"""Of these, the words that stay: what follows in a line are figures of the moment."""

READING = (
    "clusterList",
    "clusterList -m",
    "topicList",
    "topicList -c",
    "topicRoute -t TBW102",
    "topicRoute -t Compared -l",
    "topicRoute -t Compared",
    "topicRoute -t NoSuchTopic",
    "topicClusterList -t Compared",
    "topicClusterList -t NoSuchTopic",
    "topicStatus -t Compared",
    "topicStatus -t NoSuchTopic",
    "consumerProgress",
    "cleanUnusedTopic -c DefaultCluster",
    "cleanExpiredCQ -c DefaultCluster",
    "getBrokerConfig -c NoSuchCluster",
    "getBrokerConfig -c DefaultCluster",
    "statsAll -a",
    "getConsumerConfig -g NoSuchGroup",
    "queryMsgByKey -t Compared -k none",
    "producer -b 127.0.0.1:1",
)
CHANGING = (
    "updateTopic -c DefaultCluster -t Compared -r 4 -w 4",
    "updateTopicPerm -c DefaultCluster -t Compared -p 6",
    "updateTopic -c DefaultCluster -t ComparedOrder -r 2 -w 2 -o true",
    "updateTopic -c NoSuchCluster -t Compared",
    "updateSubGroup -c DefaultCluster -g Compared",
    "deleteSubGroup -c DefaultCluster -g Compared",
    "updateOrderConf -m put -t ComparedOrder -v broker-a:2;broker-b:2",
    "updateOrderConf -m get -t ComparedOrder",
    "updateOrderConf -m delete -t ComparedOrder",
    "updateOrderConf -m get -t ComparedOrder",
    "updateKvConfig -s SPACE -k key -v value",
    "deleteKvConfig -s SPACE -k key",
    "deleteKvConfig -s SPACE -k key",
    "wipeWritePerm -b broker-a",
    "topicRoute -t Compared",
    "addWritePerm -b broker-a",
    "topicRoute -t Compared",
    "wipeWritePerm -b broker-b",
    "addWritePerm -b broker-b",
    "wipeWritePerm -b no-such-broker",
    "addWritePerm -b no-such-broker",
    "updateNamesrvConfig -k orderMessageEnable -v true",
    "updateNamesrvConfig -k orderMessageEnable -v false",
    "updateNamesrvConfig -k kvConfigPath -v /x",
    "updateNamesrvConfig -k configStorePath -v /x",
    "deleteTopic -c DefaultCluster -t ComparedOrder",
    "topicRoute -t ComparedOrder",
    "deleteTopic -c DefaultCluster -t ComparedOrder",
)
SETTLED_SECONDS = 60.0
"""Brokers count every few seconds what their consumers took: what they tell of it differs from question to question."""


class Answers(NamedTuple):
    """A command, and what it makes each name server say."""

    command: str
    ours: list[str]
    apache: list[str]


@pytest.fixture(scope="module")
def compared(fleet: Running, shell: Shell) -> Running:
    """The fleet with a topic that both name servers have from both brokers."""
    made = shell.mqadmin(fleet.ours, "updateTopic", "-c", "DefaultCluster", "-t", "Compared", "-r", "4", "-w", "4")
    assert made.count("success") == 2
    for address in (fleet.ours, fleet.apache):
        asked = lambda: shell.mqadmin(address, "topicRoute", "-t", "Compared")  # noqa: B023, E731 - asked in this turn
        eventually(asked, lambda said: "broker-a" in said and "broker-b" in said)
    return fleet


def normalised(command: str, said: str) -> list[str]:
    """The lines of an answer without what differs each time, in any order: RocketMQ's tables have none."""

    def lines() -> Iterator[str]:
        for line in said.splitlines():
            text = line
            for pattern, name in _CHANGING:
                text = re.sub(pattern, name, text)
            yield " ".join(text.rstrip(",").split()[: _FIRST_WORDS.get(command.split(maxsplit=1)[0])])

    return sorted(filter(None, lines()))


def answers(compared: Running, shell: Shell, command: str) -> Answers:
    """What both name servers say to a command."""
    said = [
        normalised(command, shell.mqadmin(namesrv, *command.split()).replace(namesrv, "127.0.0.1:NAMESRV"))
        for namesrv in (compared.ours, compared.apache)
    ]
    return Answers(command, *said)


@pytest.fixture(params=["new", "old"])
def tool(request: pytest.FixtureRequest, shell: Shell, old_shell: Shell) -> Shell:
    """mqadmin of each version in turn."""
    return {"new": shell, "old": old_shell}[request.param]


def test_what_reads_says_the_same(compared: Running, tool: Shell) -> None:
    for command in READING:
        found = lambda: answers(compared, tool, command)  # noqa: B023, E731 - called in this turn
        eventually(found, lambda said: said.ours == said.apache, SETTLED_SECONDS)


def test_what_changes_says_the_same(compared: Running, tool: Shell) -> None:
    found = [answers(compared, tool, command) for command in CHANGING]
    assert [one for one in found if one.ours != one.apache] == []


def test_the_settings_that_both_have_are_the_same(compared: Running, shell: Shell) -> None:
    def settings(namesrv: str) -> dict[str, str]:
        rows = [line.partition(" = ") for line in shell.mqadmin(namesrv, "getNamesrvConfig").splitlines()]
        return {key.strip(): value.strip() for key, separator, value in rows if separator}

    ours, apache = settings(compared.ours), settings(compared.apache)
    both = (ours.keys() & apache.keys()) - {"scanNotActiveBrokerInterval"}  # ours is that of 4.9
    assert "orderMessageEnable" in both
    assert {key: ours[key] for key in both} == {key: apache[key] for key in both}
