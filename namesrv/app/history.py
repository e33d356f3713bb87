"""What operators ask about the past: entries of the journal, and why a route is as it is."""

from __future__ import annotations

from functools import partial

from namesrv_api.v1.admin_service_pb2 import RouteExplanation
from namesrv_api.v1.route_data_pb2 import NamesrvHeader

from namesrv.app.fair_queue import FairLock
from namesrv.app.worker import Worker
from namesrv.core.errors import Reason, Refused
from namesrv.core.explain import CurrentState, Question, add_journal_entry, explain_route
from namesrv.core.journal import JournalEntry, JournalPosition, JournalQuery
from namesrv.core.state import RouteState
from namesrv.storage.journal import Journal


class History:
    """Reads the journal and the change log, for one call of each owner at a time."""

    def __init__(self, state: RouteState, journal: Journal, reader: Worker, started_at_millis: int) -> None:
        self._state = state
        self._journal = journal
        self._reader = reader
        self._started_at_millis = started_at_millis
        self._searching, self._copying = FairLock(), FairLock()

    async def entries(self, query: JournalQuery, owner: str) -> list[JournalEntry]:
        """The newest entries of the journal that a query asks for. Raises NOT_DURABLE, or OVERLOADED."""
        async with self._searching.held_for(owner):
            return await self._journal.read(query)

    async def explained(self, question: Question, owner: str) -> tuple[NamesrvHeader, list[RouteExplanation]]:
        """Explains the groups of a route, as of the revision of the header that is returned with them.

        Where memory knows nothing of a group, its last entry of the journal is added.
        """
        async with self._copying.held_for(owner):  # a thousand that wait would each have copied the change log
            header = self._state.header()
            now = CurrentState(self._state, self._started_at_millis, question)
            changes = self._state.change_log.newest_first()
            found = await self._reader.run(partial(explain_route, now, changes), owner)
            del now, changes
        for each in found:
            if question.broker_name is not None and each.state == RouteExplanation.STATE_NEVER_REGISTERED:
                await self._add_journal(each, question.broker_name)
        return header, found

    async def _add_journal(self, explanation: RouteExplanation, broker_name: str) -> None:
        before = JournalPosition(self._state.identity.epoch, self._state.change_log.compacted_revision + 1)
        try:
            entries = await self._journal.read(JournalQuery(1, before, broker_name=broker_name))
        except Refused as error:
            if error.reason not in {Reason.NOT_DURABLE, Reason.OVERLOADED}:
                raise
            return  # an explanation without the past is better than none
        if entries:
            add_journal_entry(explanation, entries[0])
