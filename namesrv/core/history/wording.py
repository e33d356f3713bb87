"""The words of an explanation: who decided what, when and why, in sentences for a person."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice

from namesrv.core.records.changes import Cause
from namesrv.core.records.intents import HoldKey, Intent

BROKERS_NAMED = 3
"""Brokers of a group that a sentence names; the others are counted."""


def held_back(hold: Intent) -> str:
    """That an operator holds a topic back."""
    assert isinstance(hold.key, HoldKey), "only topics are held"
    where = "all clusters" if hold.key.cluster_name is None else f"cluster {hold.key.cluster_name}"
    return decided(f"the topic is held back in {where}", hold)


def decided(what: str, intent: Intent) -> str:
    """What an operator decided, who, when and why."""
    cause = Cause("", intent.caller, intent.comment)
    return f"{what}{by_caller(cause) or ' by an operator'} since {iso(intent.since_millis)}{with_comment(cause)}"


def by_caller(cause: Cause) -> str:
    """Who did it, if that is known."""
    return f" by {cause.caller}" if cause.caller else ""


def with_comment(cause: Cause) -> str:
    """What was said when it was done, if anything."""
    return f" ({cause.comment})" if cause.comment else ""


def named_brokers(addrs: Mapping[int, str]) -> str:
    """The first brokers of a group by address and id."""
    named = [f"{addrs[broker_id]} (id {broker_id})" for broker_id in islice(sorted(addrs), BROKERS_NAMED)]
    more = len(addrs) - len(named)
    return " and ".join((", ".join(named), f"{more:,} more")) if more else ", ".join(named)


def iso(millis: int) -> str:
    """ISO 8601, UTC."""
    moment = datetime.fromtimestamp(millis / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
