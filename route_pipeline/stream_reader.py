"""The stream: a snapshot of each name server, then every change of it, exactly once; and its offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from groundwork.endpoints import Endpoint
from route_pipeline import change_rows
from route_pipeline.batch_reader import ChangesPart, SnapshotPart, check_name
from route_pipeline.first_line import text_first
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
from route_pipeline.options import FAIL, READ, WAIT, ReadRequest

# Offsets of a stream: a point in the history of each name server. Spark keeps them in the query's checkpoint.

OFFSET_VERSION = 1
"""Version of the JSON below; raised by a change that an older version would misread."""

UP, LOST, HOLE = "up", "lost", "hole"
_STATES = (UP, LOST, HOLE)


class OffsetError(ValueError):
    """The checkpoint's offset cannot be used; the text is one line."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one name server has been read."""

    namesrv: str = ""
    """Name that it gives itself; empty if it has never answered."""
    epoch: str = ""
    """Its process lifetime; empty if nothing has been read yet."""
    revision: int = 0
    """Everything up to and with this revision has been read."""
    state: str = UP
    """``up``, ``lost`` if it did not answer when this offset was made, or ``hole`` if besides changes were not read."""

    def lost(self, *, hole: bool) -> Position:
        """The same position, with nobody answering there."""
        return replace(self, state=HOLE if hole or self.state == HOLE else LOST)


Positions = dict[str, Position]
"""Positions by address, host:port."""

INITIAL: dict[str, Any] = {"version": OFFSET_VERSION, "namesrvs": {}}
"""Nothing has been read. A constant: Spark asks for it twice for the first batch, and does not keep it."""


def to_json(positions: Positions) -> dict[str, Any]:
    """The offset for Spark."""
    return {
        "version": OFFSET_VERSION,
        "namesrvs": {
            address: {
                "namesrv": position.namesrv,
                "epoch": position.epoch,
                "revision": position.revision,
                "state": position.state,
            }
            for address, position in positions.items()
        },
    }


def from_json(offset: Mapping[str, Any]) -> Positions:
    """The offset that Spark kept. Raises OffsetError if it is of another version of this program, or another source."""
    version = offset.get("version") if isinstance(offset, dict) else None
    if type(version) is not int or version != OFFSET_VERSION:  # a JSON true equals 1
        raise OffsetError(
            f"the checkpoint has offsets of version {version!r:.40}, this program knows {OFFSET_VERSION}: "
            "start a new checkpoint, which begins with a snapshot"
        )
    try:
        return {address: _position(**fields) for address, fields in offset["namesrvs"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OffsetError("the checkpoint has an offset that is damaged: start a new checkpoint") from None


def _position(namesrv: object, epoch: object, revision: object, state: object) -> Position:
    if not isinstance(namesrv, str) or not isinstance(epoch, str) or type(revision) is not int:
        raise TypeError
    if revision < 0 or state not in _STATES:
        raise ValueError
    return Position(namesrv, epoch, revision, str(state))


# The stream: a snapshot of each name server, then every change of it, exactly once.
#
# Batch 0 is a snapshot. After it, a batch is the changes after one revision up to another; where they cannot be had
# (the name server was restarted, or answers again after changes of it were not read) it is a snapshot again. A
# snapshot may be of a later revision than its batch ends at; the next batch then repeats changes that it holds
# already, at their own revisions, which sort before it: nothing has to be taken out again.
#
# A name server that is lost does not stop the others. Its position stands still, and a row of table ``reads`` says
# so. The position of a name server that is warming up stands still, too, where a snapshot would be next.


@dataclass(frozen=True)
class ReaderRowPart(InputPartition):
    """A row of table ``reads`` that tells what no name server can: that it was lost, is back, or what is missing."""

    row: Mapping[str, Any]


class NamesrvStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver; a copy of it, made by pickle, reads them in the tasks."""

    def __init__(
        self,
        request: ReadRequest,
        clock: Callable[[], float] = time.time,
        *,
        on_wait: Callable[[Endpoint, str], None] = log_wait,
        waits_for_all: bool = True,
    ) -> None:
        """Plans nothing yet.

        Args:
            on_wait: Called with address and name of a name server that is warming up, once until it is read.
            waits_for_all: Whether Trigger.AvailableNow waits until all name servers are warm, and does not only leave
                out those that are not.
        """
        self._request = request
        self._clock = clock
        self._on_wait = on_wait
        self._waits_for_all = waits_for_all
        self._told: set[Endpoint] = set()
        """Name servers that are warming up, as ``on_wait`` knows."""
        self._targets: dict[Endpoint, NamesrvState | NamesrvError] | None = None
        """With Trigger.AvailableNow: where the name servers were when the query started."""
        self._there: Positions | None = None
        """Where the name servers were when the last batch was planned, however much of it the batch took."""
        self._holes: set[Endpoint] = set()
        """Name servers that were lost after a batch was planned."""
        self._pins: list[SnapshotPart] = []
        """Snapshots that batches were planned with and that are still pinned."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        """Nothing has been read."""
        return INITIAL

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option ``maxRevisionsPerTrigger``, which Spark has no name for: it calls revisions rows."""
        limit = self._request.max_revisions
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @text_first(NamesrvError)
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes where the name servers are: the query ends when it has read that far.

        With onCold=wait it first waits until they are warm.

        Raises:
            NamesrvError: None of them answers (with onLost=fail: one of them does not).
            ColdError: One is still warming up after timeoutSeconds.
        """
        targets = self._ask_all()
        if self._request.on_cold == WAIT and self._waits_for_all:
            for endpoint, state in targets.items():
                if isinstance(state, NamesrvState) and not state.warm:
                    targets[endpoint] = wait_until_warm(endpoint, self._request.connecting, self._on_wait)
        self._targets = targets

    @text_first(NamesrvError, OffsetError)
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the name servers are, at most ``limit`` revisions after ``start``.

        Raises:
            NamesrvError: None of them answers (with onLost=fail: one of them does not).
            ColdError: One is warming up, with onCold=fail.
            OffsetError: The checkpoint is of another version.
        """
        before = from_json(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        states = self._ask_all() if self._targets is None else self._targets
        self._there = self._positions(before, states, None)
        return to_json(self._positions(before, states, most))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the name servers were: Spark shows it as ``latestOffset`` in the query's progress."""
        return None if self._there is None else to_json(self._there)

    @text_first(NamesrvError, OffsetError)
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch. A batch may be planned several times: after a crash, Spark plans it again.

        Raises:
            NamesrvError: A name server no longer has the changes (with onCompacted=fail), or none answers.
        """
        before, after = from_json(start), from_json(end)
        parts: list[InputPartition] = []
        names: dict[str, Endpoint] = {}
        lost: list[NamesrvError] = []
        for endpoint in self._request.endpoints:
            to = after.get(str(endpoint))
            if to is None:
                continue  # it was added to the options after this batch was planned; the next one has it
            if to.namesrv:
                check_name(names, to.namesrv, endpoint)
            since = before.get(str(endpoint), Position())
            try:
                parts += self._parts(endpoint, since, to)
            except NamesrvError as error:
                if isinstance(error, ColdError):
                    if self._request.on_cold != WAIT:
                        raise
                elif self._request.fail_on_lost or not error.lost:
                    raise
                else:
                    lost.append(error)
                self._holes.add(endpoint)
                if self._targets is not None:
                    self._targets[endpoint] = error  # it is not asked again, so that the query comes to its end
                parts.append(self._reader_row(endpoint, to, change_rows.HOLE, error, since.revision))
        if lost and len(lost) == len(self._request.endpoints):
            raise NamesrvError("no name server answers: " + "; ".join(map(str, lost)))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's part. Raises NamesrvError, so that Spark fails the task, if it could not be read whole."""
        with text_first(NamesrvError):
            for batch in self._read(partition):
                yield self._request.selected(batch)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        connecting, wanted = self._request.connecting, self._request.wanted
        if isinstance(partition, ReaderRowPart):
            yield change_rows.reader_row(dict(partition.row))
        elif isinstance(partition, ChangesPart):
            source = (partition.endpoint, partition.namesrv)
            yield from change_rows.change_rows(source, connecting, partition.span, wanted)
        else:
            assert isinstance(partition, SnapshotPart)
            cold = self._request.on_cold == READ
            yield from change_rows.snapshot_rows(partition.endpoint, connecting, partition.pin_id, wanted, cold=cold)

    def commit(self, end: dict[str, Any]) -> None:  # noqa: ARG002 - Spark's method
        """Lets the batch's snapshots go: nobody reads them again."""
        self.release()

    def stop(self) -> None:
        """Lets the snapshots of the last batch go."""
        self.release()

    def release(self) -> None:
        """Ends the pins of all batches that were planned. Their leases would end them later."""
        while self._pins:
            pinned = self._pins.pop()
            release_snapshot(pinned.endpoint, self._request.connecting, pinned.pin_id)

    def _ask_all(self) -> dict[Endpoint, NamesrvState | NamesrvError]:
        """Where each name server is, or why it does not say."""
        states: dict[Endpoint, NamesrvState | NamesrvError] = {}
        for endpoint in self._request.endpoints:
            try:
                states[endpoint] = ask_state(endpoint, self._request.connecting)
            except NamesrvError as error:
                if self._request.fail_on_lost or not error.lost:
                    raise
                states[endpoint] = error
        errors = [state for state in states.values() if isinstance(state, NamesrvError)]
        if len(errors) == len(states):
            raise NamesrvError("no name server answers: " + "; ".join(map(str, errors)))
        return states

    def _positions(
        self, before: Positions, states: Mapping[Endpoint, NamesrvState | NamesrvError], most: int | None
    ) -> Positions:
        """Where to read to, for each name server that has been read or can be."""
        after = {
            str(endpoint): self._next(endpoint, before.get(str(endpoint), Position()), state, most)
            for endpoint, state in states.items()
        }
        return {address: position for address, position in after.items() if position != Position()}

    def _next(
        self, endpoint: Endpoint, since: Position, state: NamesrvState | NamesrvError, most: int | None
    ) -> Position:
        if isinstance(state, NamesrvError):
            return since.lost(hole=endpoint in self._holes)
        if endpoint in self._holes and since.state != HOLE:
            # One batch is between: it notes the hole, and the batch after it fills it with a snapshot.
            return since.lost(hole=True)
        if not state.warm and (since.epoch != state.epoch or since.state == HOLE) and self._request.on_cold != READ:
            if self._request.on_cold == FAIL:
                raise cold_error(state.namesrv, endpoint)
            self._wait(endpoint, state.namesrv)
            return since
        self._told.discard(endpoint)
        self._holes.discard(endpoint)
        revision = state.revision
        if since.epoch == state.epoch and since.state != HOLE:
            # Never back: with AvailableNow, a restarted query may have read past its target already.
            revision = max(since.revision, revision)
            revision = revision if most is None else min(revision, since.revision + most)
        return Position(state.namesrv, state.epoch, revision, UP)

    def _wait(self, endpoint: Endpoint, namesrv: str) -> None:
        """Says that a name server is left out because it is warming up."""
        if endpoint not in self._told:
            self._told.add(endpoint)
            self._on_wait(endpoint, namesrv)

    def _parts(self, endpoint: Endpoint, since: Position, to: Position) -> list[InputPartition]:
        if to.state != UP:
            reason = NamesrvError(f"name server {endpoint} does not answer")
            return [] if since.state != UP else [self._reader_row(endpoint, to, change_rows.LOST, reason)]
        parts: list[InputPartition] = []
        if since.state != UP:
            parts.append(self._reader_row(endpoint, to, change_rows.BACK))
        if to.epoch != since.epoch or since.state == HOLE:
            return [*parts, self._snapshot(endpoint)]
        if to.revision == since.revision:
            return parts
        return [*parts, self._changes(endpoint, since, to)]

    def _changes(self, endpoint: Endpoint, since: Position, to: Position) -> InputPartition:
        state = ask_state(endpoint, self._request.connecting)
        if state.epoch != since.epoch:
            # Restarted since the batch was planned: what it had is gone, what it has is in the snapshot. The next batch
            # begins with a snapshot again, though this one may be in the sink already: it may also be not, for a sink
            # passes over a batch that it has had, and Spark plans such a batch anew after a crash.
            return self._snapshot(endpoint)
        if state.compacted_revision > since.revision:
            if self._request.resync_when_compacted:
                return self._snapshot(endpoint)
            raise NamesrvError(
                f"name server {endpoint} has the changes after revision {state.compacted_revision} only, and "
                f"{since.revision} is where this query is: it was stopped for too long. Set the option "
                "onCompacted=resync to go on with a snapshot (what came and went in between is not seen)"
            )
        return ChangesPart(endpoint, state.namesrv, Span(since.epoch, since.revision, to.revision))

    def _snapshot(self, endpoint: Endpoint) -> InputPartition:
        pin = pin_snapshot(endpoint, self._request.connecting, self._request.pin_seconds, follow=True)
        part = SnapshotPart(endpoint, pin.pin_id)
        self._pins.append(part)
        if not pin.warm and self._request.on_cold != READ:
            raise cold_error(pin.namesrv, endpoint)  # it was restarted since the batch was planned
        return part

    def _reader_row(
        self, endpoint: Endpoint, at: Position, op: str, reason: Exception | None = None, after: int | None = None
    ) -> ReaderRowPart:
        return ReaderRowPart(
            {
                "namesrv": at.namesrv or str(endpoint),
                "epoch": at.epoch,
                "revision": at.revision,
                "changed_at": int(self._clock() * 1_000_000),
                "op": op,
                "key": str(endpoint),
                "reason": None if reason is None else str(reason),
                "after_revision": after,
            }
        )
