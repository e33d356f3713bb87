"""The call of AdminService that pages through the journal."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.config import limits
from namesrv.core.changes import Change, LiveRemoved
from namesrv.core.errors import InvalidField
from namesrv.core.journal_text import summary, touches_broker, touches_topic
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import Sliced
from namesrv.server.background.table_writer import run_cooperatively
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import field_rules
from namesrv.server.services.paging import last_of_page_before, page_token

FILTER_SLICE = 2_000
"""Changes and rows that a filter looks at before giving way: about a millisecond."""

ENTRY_COST = 50
"""How many of those making an entry counts as."""

_MAX_REVISION_DIGITS = 18
"""Digits of a revision in a page token: such a number fits into 64 bits."""


class AuditCalls:
    """Answers from the change log, which is the journal."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager

    async def ListAuditEntries(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListAuditEntriesRequest, _context: Context
    ) -> pb.ListAuditEntriesResponse:
        """The journal, newest first; RocketMQ has none."""
        wanted = _Wanted.of(request)
        size = min(
            field_rules.page_size(request.page_size or limits.DEFAULT_AUDIT_PAGE_SIZE),
            limits.MAX_AUDIT_PAGE_SIZE,
        )
        before = _revision_to_go_on_before(request.page_token)
        page = await run_cooperatively(_page_of(self._newest_first(before), wanted, size))
        return pb.ListAuditEntriesResponse(
            header=self._manager.header(), entries=page.entries, next_page_token=page.next_page_token
        )

    def _newest_first(self, before: int | None) -> list[Change]:
        """What the journal holds of the revisions before one; None: all of it."""
        changes = self._manager.change_log.newest_first()
        if before is None or not changes:
            return changes
        return changes[max(0, changes[0].revision - before + 1) :]  # revisions have no gaps


class _Wanted(NamedTuple):
    """Which changes a request is about."""

    topic: str | None
    broker_name: str | None
    from_millis: int | None
    to_millis: int | None

    @classmethod
    def of(cls, request: pb.ListAuditEntriesRequest) -> _Wanted:
        """Checks the filters of a request. Raises InvalidField."""
        if request.HasField("topic"):
            field_rules.check_topic("topic", request.topic)
        if request.HasField("broker_name"):
            field_rules.check_name("broker_name", request.broker_name)
        for field in ("from_millis", "to_millis"):
            millis = getattr(request, field)
            if millis < 0:
                raise InvalidField(field, f"is {millis}, must not be negative")
        if request.HasField("from_millis") and request.HasField("to_millis"):
            first, end = request.from_millis, request.to_millis
            if first >= end:
                raise InvalidField("to_millis", f"is {end}, must be after from_millis, which is {first}")
        return cls(
            request.topic if request.HasField("topic") else None,
            request.broker_name if request.HasField("broker_name") else None,
            request.from_millis if request.HasField("from_millis") else None,
            request.to_millis if request.HasField("to_millis") else None,
        )

    def matches(self, change: Change) -> Sliced[bool]:
        """Whether a change passes all filters. Gives way within one of very many rows: a lost data centre has them."""
        at = change.applied_at_millis
        if (self.from_millis is not None and at < self.from_millis) or (
            self.to_millis is not None and self.to_millis <= at
        ):
            return False
        topic_missing, broker_missing = self.topic is not None, self.broker_name is not None
        for start in range(0, len(change.rows), FILTER_SLICE):
            rows = change.rows[start : start + FILTER_SLICE]
            part = change if len(rows) == len(change.rows) else replace(change, rows=rows, next=None)
            topic_missing = topic_missing and not touches_topic(part, self.topic or "")
            broker_missing = broker_missing and not touches_broker(part, self.broker_name or "")
            if not (topic_missing or broker_missing):
                break
            if part is not change:
                yield
        return not (topic_missing or broker_missing)


class _Page(NamedTuple):
    entries: list[pb.AuditEntry]
    next_page_token: str


def _page_of(changes: list[Change], wanted: _Wanted, size: int) -> Sliced[_Page]:
    """The first entries that are wanted. Looks also at changes after one that is too old: clocks step back."""
    entries: list[pb.AuditEntry] = []
    cost = 0
    for change in changes:
        cost += 1 + len(change.rows)
        if (yield from wanted.matches(change)):
            if len(entries) == size:
                return _Page(entries, page_token(str(entries[-1].revision)))
            entries.append(_entry(change))
            cost += ENTRY_COST
        if cost >= FILTER_SLICE:
            cost = 0
            yield
    return _Page(entries, "")


def _entry(change: Change) -> pb.AuditEntry:
    gone = [row.reason for row in change.rows if isinstance(row, LiveRemoved)]
    return pb.AuditEntry(
        revision=change.revision,
        applied_at_millis=change.applied_at_millis,
        caller=change.cause.caller,
        cause=change.cause.call,
        summary=summary(change),
        comment=change.cause.comment,
        removed_broker_count=len(gone),
        removal_reason=route_data_pb2.RemovalReason.Name(gone[0].value if gone else 0),
    )


def _revision_to_go_on_before(token: str) -> int | None:
    """None for the first page. Raises InvalidField."""
    text = last_of_page_before(token)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_REVISION_DIGITS):
        raise InvalidField("page_token", "is not a next_page_token of this call")
    return int(text)
