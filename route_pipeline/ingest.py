"""The ingest without Spark: a thread for each name server, and one commit for each batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from namesrv_common.endpoints import Endpoint
from route_pipeline.log.data_files import BatchRows
from route_pipeline.log.route_log import COMPACT_EVERY, RouteLog
from route_pipeline.options import STREAMING, Options, ReadRequest
from route_pipeline.planner import Part, Planner, read_part
from route_pipeline.positions import HOLE, Position, Positions
from route_pipeline.schemas import CHANGES

HEARTBEAT_SECONDS = 60.0
"""How often the log records that nothing changed. Without it, readers could not see whether the ingest still ran."""


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch that is in the log."""

    batch: int
    rows: int
    aside: int  # rows that were quarantined
    reads: tuple[str, ...]  # what was read, in words, with the name server


def ingest_options(
    endpoints: Iterable[Endpoint], given: Mapping[str, str] | None = None, *, follows: bool = False
) -> Options:
    """The options of an ingest of some name servers. Raises ValueError, also if one of their files is wrong."""
    fixed = {"endpoints": ",".join(map(str, endpoints)), "table": CHANGES}
    options = Options.of({**(given or {}), **fixed}, STREAMING if follows else {**STREAMING, "onCold": "fail"})
    options.connecting()
    return options


class Ingester:
    """Appends to a log what has changed, as often as it is asked to."""

    def __init__(
        self,
        options: Options,
        log: RouteLog,
        *,
        follows: bool = False,
        restart: bool = False,
        on_batch: Callable[[Appended], None] = lambda _batch: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads nothing yet.

        Args:
            follows: Whether :meth:`once` is called again and again. It then leaves out name servers that are warming
                up, and does not fail.
            restart: Whether to forget how far was read, and so to begin with a snapshot.
        """
        self._options = options
        self._log = log
        self._follows = follows
        self._restart = restart
        self._on_batch = on_batch
        self._monotonic = monotonic
        self._wrote = monotonic()
        self._told: set[Endpoint] = set()

    def once(self) -> list[Appended]:
        """Appends all changes that there are now. After an error, another call continues where it was.

        Each call reads the files of certificates and the token. Raises ValueError if one is wrong, NamesrvError and
        LogError.
        """
        request = ReadRequest(self._options, self._options.connecting())
        log, written = self._log, list[Appended]()
        planner = Planner(request, lambda: log.now().timestamp(), waits_for_all=not self._follows, told=self._told)
        log.catch_up()
        try:
            planner.fix_end()
            start = self._start(planner)
            while (end := planner.end(start)) != start:
                written.append(self._append(request, planner, start, end))
                # As planned, though a name server that was restarted since has been read in its next life: else this
                # would not come to its end. Missing changes are only in the log.
                start = end | {name: at for name, at in self._start(planner).items() if at.state == HOLE}
            if self._monotonic() - self._wrote >= HEARTBEAT_SECONDS and log.batch >= 0:
                log.append([], [], quiet=planner.quiet(start))
                self._wrote = self._monotonic()
        finally:
            planner.release()
        return written

    def _start(self, planner: Planner) -> Positions:
        start = planner.start_of({name: (one.address, one.position) for name, one in self._log.reads.items()})
        if self._restart:
            return {address: Position(snapshot=position.snapshot) for address, position in start.items()}
        return start

    def _append(self, request: ReadRequest, planner: Planner, start: Positions, end: Positions) -> Appended:
        parts = planner.parts(start, end)
        at = self._log.now()  # not before the snapshots are taken: else clocks of one machine seem to differ

        def read(part: Part) -> BatchRows:
            rows = BatchRows(self._log.place, at)
            rows.add_all(read_part(request, part))
            return rows

        with ThreadPoolExecutor(max(1, len(parts))) as pool:
            found = list(pool.map(read, parts))
        reads = [read for rows in found for read in rows.reads]
        number = self._log.append([file for rows in found for file in rows.files], reads, quiet=planner.quiet(start))
        self._restart = False
        planner.release()
        self._wrote = self._monotonic()
        appended = Appended(
            number, sum(rows.rows for rows in found), sum(rows.aside for rows in found), tuple(map(_in_words, reads))
        )
        self._on_batch(appended)
        if self._follows and number % COMPACT_EVERY == COMPACT_EVERY - 1:
            self._log.compact()
        return appended


def _in_words(read: Mapping[str, object]) -> str:
    reason = f": {read['reason']}" if read["reason"] else ""
    return (
        f"{read['namesrv']}: {read['op']}, now at revision {read['revision']} of {read['epoch'] or 'no'} epoch{reason}"
    )
