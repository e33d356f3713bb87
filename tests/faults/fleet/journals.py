"""What a name server's journal tells of each broker group, read again and again during a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from tests.faults.fleet.workers import TIMEOUT, Connect, Worker
from tests.faults.history import History
from tests.support.programs.processes import Client

PAUSE_SECONDS = 1.0
"""Between two readings: a name server that is killed loses what it has not yet written."""
PAGE = 500


class Journal(Worker):
    """Reads what has been added to a journal, group by group."""

    def __init__(self, server: str, connect: Connect, history: History, groups: Sequence[str]) -> None:
        super().__init__("journal", server, connect, history)
        self._groups = groups
        self._reached: dict[tuple[str, str], int] = defaultdict(int)
        """By epoch and group, the revision up to which all entries are recorded."""

    def work(self, client: Client) -> None:
        """Reads on."""
        while not self.ending.wait(PAUSE_SECONDS):
            status = route_service_pb2.GetNamesrvStatusRequest()
            header = client.routes.GetNamesrvStatus(status, timeout=TIMEOUT).header
            for group in self._groups:
                if self._reached[header.epoch, group] == header.revision:
                    continue  # a quiet night would be more records than all its faults
                self._read(client, header.epoch, group, header.revision)

    def _read(self, client: Client, epoch: str, group: str, up_to: int) -> None:
        reached = self._reached[epoch, group]
        request = pb.ListAuditEntriesRequest(
            broker_name=group, page_size=PAGE, after_epoch=epoch, after_revision=reached
        )
        told = []
        while True:
            page = client.admin.ListAuditEntries(request, timeout=TIMEOUT)
            if page.header.epoch != epoch:
                return  # that life is over
            # What came meanwhile comes next time.
            told += [_told(entry) for entry in page.entries if entry.revision <= up_to]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        self.history.add("journal", server=self.server, epoch=epoch, group=group, up_to=up_to, entries=told)
        self._reached[epoch, group] = up_to


def _told(entry: pb.AuditEntry) -> dict[str, object]:
    reason = route_data_pb2.RemovalReason.Name(entry.removal_reason).removeprefix("REMOVAL_REASON_")
    return {
        "revision": entry.revision,
        "removed": entry.removed_broker_count,
        "reason": reason,
        "summary": entry.summary,
    }
