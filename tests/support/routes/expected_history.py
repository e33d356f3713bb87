"""The history that a log of a fleet's life should have."""

from __future__ import annotations

from tests.support.routes.fleet_life import LivingNamesrv, Moment, Row, Version


class ExpectedHistory:
    """The history that the log should have, from what could be seen at each ingest."""

    def __init__(self) -> None:
        self.versions: list[Version] = []
        self.snapshots = 0
        self._open: dict[tuple[str, str, str], tuple[Row, tuple[str, int], int]] = {}
        self._seen: dict[str, tuple[str, int]] = {}

    def ingest(self, namesrv: LivingNamesrv, now_millis: int) -> None:
        """Takes up what an ingest sees of a name server."""
        if namesrv.lost:
            return
        latest = namesrv.moments[-1]
        epoch, revision = self._seen.get(namesrv.name, ("", 0))
        self._seen[namesrv.name] = latest[:2]
        compacted = namesrv.fleet.state.change_log.compacted_revision
        if epoch != latest.epoch or compacted > revision:
            self.snapshots += 1
            self._take(namesrv.name, latest._replace(at_millis=now_millis, reasons={}), "NOT_IN_SNAPSHOT")
            return
        for moment in namesrv.moments:
            if moment.epoch == epoch and moment.revision > revision:
                self._take(namesrv.name, moment, None)

    def ended(self) -> list[Version]:
        """All versions, with those that are still there."""
        still = [
            Version(*key, content, point, millis, None, None, None)
            for key, (content, point, millis) in self._open.items()
        ]
        return self.versions + still

    def _take(self, name: str, moment: Moment, reason: str | None) -> None:
        point = (moment.epoch, moment.revision)
        for key in [key for key in self._open if key[0] == name and key[1:] not in moment.state]:
            self._end(key, point, moment.at_millis, reason or moment.reasons[key[1:]])
        for (table, row_key), content in moment.state.items():
            key = (name, table, row_key)
            if key in self._open and self._open[key][0] == content:
                continue
            if key in self._open:
                self._end(key, point, moment.at_millis, "CHANGED")
            self._open[key] = (content, point, moment.at_millis)

    def _end(self, key: tuple[str, str, str], point: tuple[str, int], millis: int, reason: str) -> None:
        content, from_point, from_millis = self._open.pop(key)
        self.versions.append(Version(*key, content, from_point, from_millis, point, millis, reason))
