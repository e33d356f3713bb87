"""docs/limits.md has each limit on answers of servers, with the value that is in force."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_agent import channel
from broker_agent.topics import slave_synchronize
from groundwork import channels, namesrv_client
from groundwork.intake import IntakeLimits
from nsctl import rocketmq
from route_client import cache, watch
from route_pipeline import name_server, snapshot_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "limits.md"

LIMITS: dict[str, tuple[float | IntakeLimits, ...]] = {
    "each program: one message": (channels.MAX_ANSWER_BYTES,),
    "agent: the table of a master": (
        slave_synchronize.TABLE_LIMITS,
        slave_synchronize.COPY_SECONDS,
    ),
    "agent: events": (channel.EVENTS_PER_SECOND,),
    "route client: a watch": (watch.WATCH_LIMITS,),
    "route client: all routes": (cache.MAX_ROUTE_BYTES,),
    "nsctl, console, pipeline: a stream": (namesrv_client.STREAM_LIMITS,),
    "pipeline: rows of queues": (name_server.MAX_QUEUE_ROWS, snapshot_rows.MAX_ROWS_ABOUT_BROKERS),
    "nsctl, console: all pages": (namesrv_client.LIST_LIMITS, namesrv_client.MAX_PAGES),
    "nsctl, console: live brokers": (namesrv_client.MAX_BROKERS,),
    "nsctl: an answer of a RocketMQ": (
        rocketmq.MAX_ANSWER_BYTES,
        rocketmq.MAX_ANSWER_VALUES,
        rocketmq.ANSWER_SECONDS,
    ),
}
"""The limits of each row of the page, by how the row begins."""


def rows() -> list[str]:
    """The rows of the section's table."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## Answers of servers\n")
    section, _, _ = section.partition("\n## ")
    return re.findall(r"^\| (?!Program|---)(.*) \|$", section, re.MULTILINE)


def shown(limits: tuple[float | IntakeLimits, ...]) -> set[str]:
    """The numbers of the limits as the page writes them; a deadline of the call is no number."""
    numbers = [
        number
        for limit in limits
        for number in ((limit.bytes, limit.rows, limit.seconds) if isinstance(limit, IntakeLimits) else (limit,))
    ]
    return {f"{number:,.0f}" for number in numbers if number != float("inf")}


def test_the_page_has_each_row_and_no_other() -> None:
    assert [next((begins for begins in LIMITS if row.startswith(begins)), row) for row in rows()] == list(LIMITS)


@pytest.mark.parametrize("begins", LIMITS)
def test_the_numbers_of_a_row_are_those_in_force(begins: str) -> None:
    (row,) = (row for row in rows() if row.startswith(begins))
    assert shown(LIMITS[begins]) <= set(re.findall(r"[\d,]*\d", row))
