"""The plan of a stream: a snapshot of each name server, then every change of it, exactly once. For threads and Spark.

The first batch is a snapshot. After it, a batch is the changes after one revision up to another. If these are not
available, it is a snapshot again: the name server was restarted, has dropped the changes, or answers again after
changes of it were not read. Which of the two is decided where the end of the batch is, so a batch that is planned
anew is the same. A snapshot may be of a later revision than its batch ends at. The next batch then repeats changes
that the snapshot holds already, at their own revisions. These sort before it, so nothing has to be removed.

A name server that is lost does not stop the others. Its position stands still, and a row of table ``reads`` says
so. The position of a name server that is warming up stands still, too, where a snapshot would be next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa

from namesrv_common.endpoints import Endpoint
from route_pipeline import change_rows
from route_pipeline.arrow_schemas import batch_of
from route_pipeline.change_rows import ChangesPart, SnapshotPart
from route_pipeline.name_server import (
    ColdError,
    NamesrvError,
    NamesrvState,
    Span,
    ask_state,
    cold_error,
    log_wait,
    pin_snapshot,
    release_snapshot,
    wait_until_warm,
)
from route_pipeline.options import ReadRequest
from route_pipeline.positions import HOLE, UP, Position, Positions
from route_pipeline.schemas import CHANGES, READS

ReaderRow = dict[str, Any]
"""A row of table ``reads`` that tells what no name server can: that it was lost, is back, or what is missing."""

Part = SnapshotPart | ChangesPart | ReaderRow
"""What one task reads."""


def read_part(request: ReadRequest, part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of table ``changes`` of a part. Raises NamesrvError if it could not be read whole."""
    connecting, wanted = request.connecting, request.wanted
    if isinstance(part, dict):
        yield batch_of(CHANGES, {"table_name": READS, "from_snapshot": False}, [part])
    elif isinstance(part, ChangesPart):
        yield from change_rows.change_rows(part, connecting, wanted)
    else:
        cold = request.options.on_cold == "read"
        yield from change_rows.snapshot_rows(part, connecting, wanted, cold=cold)


def check_name(names: dict[str, Endpoint], namesrv: str, endpoint: Endpoint) -> None:
    """Notes a name server's name. Raises NamesrvError if another address has it: their rows would be mixed up."""
    other = names.setdefault(namesrv, endpoint)
    if other != endpoint:
        raise NamesrvError(
            f"{other} and {endpoint} both call themselves {namesrv!r}: "
            "name each name server once, and each its own name"
        )


def check_some_answer(lost: Collection[NamesrvError], asked: Collection[Endpoint]) -> None:
    """Raises NamesrvError if all that were asked are lost."""
    if len(lost) == len(asked):
        raise NamesrvError("no name server answers: " + "; ".join(map(str, lost)))


class Planner:
    """Plans batches. It holds the pins of the snapshots that it planned."""

    def __init__(
        self,
        request: ReadRequest,
        clock: Callable[[], float] = time.time,
        *,
        waits_for_all: bool = True,
        told: set[Endpoint] | None = None,
    ) -> None:
        """Plans nothing yet.

        Args:
            waits_for_all: Whether :meth:`fix_end` waits until all name servers are warm, or leaves others out.
            told: Name servers that the log calls cold, each once until it is read.
        """
        self._options, self._connecting = request.options, request.connecting
        self._clock = clock
        self._waits_for_all = waits_for_all
        self._told = set() if told is None else told
        self._fixed: dict[Endpoint, NamesrvState | NamesrvError] | None = None
        self._asked_at = 0
        self._holes: set[Endpoint] = set()
        """Name servers that were lost after a batch was planned."""
        self._pins: list[SnapshotPart] = []
        """Snapshots that batches were planned with and that are still pinned."""

    def fix_end(self) -> None:
        """Notes where the name servers are, with onCold=wait once they are warm: later batches end there.

        Raises NamesrvError if none of them answers (with onLost=fail: one of them does not), or one stays cold.
        """
        states = self._ask_all()
        if self._options.on_cold == "wait" and self._waits_for_all:
            for endpoint, state in states.items():
                if isinstance(state, NamesrvState) and not state.warm:
                    states[endpoint] = wait_until_warm(endpoint, self._connecting)
        self._fixed = states

    def start_of(self, known: Mapping[str, tuple[str, Position]]) -> Positions:
        """The positions by address, after :meth:`fix_end`. ``known`` has address and position by name."""
        assert self._fixed is not None
        by_address = {address: position for address, position in known.values() if address}
        found = {}
        for endpoint, state in self._fixed.items():
            if isinstance(state, NamesrvState):
                position = known.get(state.namesrv, ("", None))[1]
            else:
                position = by_address.get(str(endpoint))
            if position is not None:
                found[str(endpoint)] = position
        return found

    def end(self, start: Positions) -> Positions:
        """Where the next batch ends: where the name servers are that have been read or can be.

        Raises NamesrvError if an option says fail (onLost, onCompacted, onCold), or none of them answers.
        """
        states = self._ask_all() if self._fixed is None else self._fixed
        end = {
            str(endpoint): self._next(endpoint, start.get(str(endpoint), Position()), state)
            for endpoint, state in states.items()
        }
        return {address: position for address, position in end.items() if position != Position()}

    def quiet(self, start: Positions) -> dict[str, int]:
        """Name servers that have nothing new, with the time at which they said so, after :meth:`fix_end`."""
        assert self._fixed is not None
        return {
            state.namesrv: self._asked_at
            for endpoint, state in self._fixed.items()
            if isinstance(state, NamesrvState)
            and (at := start.get(str(endpoint))) is not None
            and (at.state, at.epoch, at.revision) == (UP, state.epoch, state.revision)
        }

    def parts(self, start: Positions, end: Positions) -> list[Part]:
        """The tasks of a batch, which Spark plans again after a crash. Raises NamesrvError if nobody answers."""
        parts: list[Part] = []
        names: dict[str, Endpoint] = {}
        lost: list[NamesrvError] = []
        for endpoint in self._options.endpoints:
            to = end.get(str(endpoint))
            if to is None:
                continue  # it was added to the options after this batch was planned; the next one has it
            if to.namesrv:
                check_name(names, to.namesrv, endpoint)
            since = start.get(str(endpoint), Position())
            try:
                parts += self._parts(endpoint, since, to)
            except NamesrvError as error:
                if not self._may_miss(error):
                    raise
                if error.lost:
                    lost.append(error)
                self._holes.add(endpoint)
                if self._fixed is not None:
                    self._fixed[endpoint] = error  # it is not asked again, so that the stream comes to its end
                parts.append(self._reader_row(endpoint, since, change_rows.HOLE, error, to))
        check_some_answer(lost, self._options.endpoints)
        return parts

    def _may_miss(self, error: NamesrvError) -> bool:
        """Whether the batch may continue without that name server."""
        if isinstance(error, ColdError):
            return self._options.on_cold == "wait"
        return isinstance(error, _GoneError) or (error.lost and self._options.on_lost == "continue")

    def release(self) -> None:
        """Ends the pins of all batches that were planned. Their leases would end them later."""
        while self._pins:
            pinned = self._pins.pop()
            release_snapshot(pinned.endpoint, self._connecting, pinned.pin_id)

    def _micros(self) -> int:
        return int(self._clock() * 1_000_000)

    def _ask_all(self) -> dict[Endpoint, NamesrvState | NamesrvError]:
        """Where each name server is, or why it does not say."""
        self._asked_at = self._micros()  # before they answer: what happens after their answer is not known
        states: dict[Endpoint, NamesrvState | NamesrvError] = {}
        for endpoint in self._options.endpoints:
            try:
                states[endpoint] = ask_state(endpoint, self._connecting)
            except NamesrvError as error:
                if self._options.on_lost == "fail" or not error.lost:
                    raise
                states[endpoint] = error
        check_some_answer([state for state in states.values() if isinstance(state, NamesrvError)], states)
        return states

    def _next(self, endpoint: Endpoint, since: Position, state: NamesrvState | NamesrvError) -> Position:
        if isinstance(state, NamesrvError):
            return since.lost(hole=endpoint in self._holes)
        if endpoint in self._holes and since.state != HOLE:
            # One batch is between: it notes the hole, and the batch after it fills it with a snapshot.
            return since.lost(hole=True)
        anew = since.epoch != state.epoch or since.state == HOLE
        if not anew and state.compacted_revision > since.revision:
            self._check_may_resync(endpoint, since, state)
            anew = True
        if not state.warm and anew and self._options.on_cold != "read":
            if self._options.on_cold == "fail":
                raise cold_error(state.namesrv, endpoint)
            if endpoint not in self._told:
                self._told.add(endpoint)
                log_wait(endpoint, state.namesrv)
            return since
        self._told.discard(endpoint)
        self._holes.discard(endpoint)
        if anew:
            # A later snapshot has a larger number, also of another reader.
            number = max(since.snapshot + 1, self._asked_at)
            return Position(state.namesrv, state.epoch, state.revision, UP, number, self._asked_at)
        # Never back: with fixed ends, a restarted stream may have read past them already.
        revision = max(since.revision, state.revision)
        if revision == since.revision and since.state == UP:
            return since
        return Position(state.namesrv, state.epoch, revision, UP, since.snapshot, self._asked_at)

    def _check_may_resync(self, endpoint: Endpoint, since: Position, state: NamesrvState) -> None:
        if self._options.on_compacted == "fail":
            raise NamesrvError(
                f"name server {endpoint} has the changes after revision {state.compacted_revision} only, and "
                f"{since.revision} is where this query is: it was stopped for too long. Set the option "
                "onCompacted=resync to go on with a snapshot (what came and went in between is not seen)"
            )

    def _parts(self, endpoint: Endpoint, since: Position, to: Position) -> list[Part]:
        if to.state != UP:
            reason = NamesrvError(f"name server {endpoint} does not answer")
            return [] if since.state != UP else [self._reader_row(endpoint, to, change_rows.LOST, reason)]
        parts: list[Part] = []
        if since.state != UP:
            parts.append(self._reader_row(endpoint, since, change_rows.BACK))
        if to.snapshot != since.snapshot:
            # It may be cold, if it was restarted since the batch was planned.
            cold, seconds = self._options.on_cold == "read", self._options.pin_seconds
            _, pin_id = pin_snapshot(endpoint, self._connecting, seconds, cold=cold, follow=True)
            self._pins.append(SnapshotPart(endpoint, pin_id, to.snapshot))
            return [*parts, self._pins[-1]]
        if to.revision == since.revision:
            return parts
        state = ask_state(endpoint, self._connecting)
        if state.epoch != since.epoch:
            raise _GoneError(f"name server {endpoint} was restarted before its changes were read")
        if state.compacted_revision > since.revision:
            self._check_may_resync(endpoint, since, state)
            raise _GoneError(f"name server {endpoint} dropped changes before they were read")
        span = Span(since.epoch, since.revision, to.revision)
        return [*parts, ChangesPart(endpoint, state.namesrv, span, to.snapshot, to.read_at)]

    def _reader_row(
        self, endpoint: Endpoint, at: Position, op: str, reason: Exception | None = None, to: Position | None = None
    ) -> ReaderRow:
        """A row about a position; ``to`` is where the batch should have ended, if nothing of it was read."""
        reached = to or at
        return {
            "namesrv": reached.namesrv or str(endpoint),
            "epoch": reached.epoch,
            "revision": reached.revision,
            "changed_at": self._micros(),
            "op": op,
            "key": str(endpoint),
            "reason": None if reason is None else str(reason),
            "after_revision": None if to is None else at.revision,
            "snapshot": at.snapshot,
        }


class _GoneError(NamesrvError):
    """The changes of a planned batch have been dropped. A snapshot follows the hole."""
