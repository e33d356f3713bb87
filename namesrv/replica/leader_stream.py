"""The stream of changes from a leader: how it is connected, resumed and begun anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random, SystemRandom
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from namesrv_internal.v1 import replica_service_pb2 as pb

from groundwork.backoff import Backoff
from groundwork.channels import ClientSecurity, open_aio_channel
from groundwork.grpc_errors import RichError
from groundwork.intake import Intake, IntakeLimits, TooMuchSent, rows_in
from namesrv.app.writer import TableWriter
from namesrv.core.copy_size import MAX_BROKER_ROWS, MAX_OTHER_ROWS, MAX_TEXT_LENGTH, MAX_TOPICS, CopyTooLarge
from namesrv.core.replica import OutOfStep, ReplicaIntake, ReplicaTables
from namesrv.core.snapshot_load import UnusableSnapshot

SILENCE_SECONDS = 10.0
"""A leader that says nothing for so long is given up: it says at least once a second that nothing has changed."""

FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 5.0
"""Pauses between two tries double between these two, plus or minus a half."""
JITTER = (0.5, 1.5)

MAX_MESSAGE_BYTES = 32 << 20
"""Largest message of a leader: a change of all intents at once has at most 25 MB. A hostile message takes 26 times its
size when it is parsed."""

SNAPSHOT_LIMITS = IntakeLimits(bytes=1 << 30, rows=MAX_TOPICS + MAX_BROKER_ROWS + MAX_OTHER_ROWS, seconds=600.0)
"""The most that a leader's snapshot may bring. 1,000,000 topics on ten groups each have 450 MB, and take a copy one to
two minutes."""

CHANGE_LIMITS = IntakeLimits(bytes=512 << 20, rows=5_000_000, seconds=600.0)
"""The most that a leader may send until the copy has made a change or received a bookmark: the messages of one change,
and news. A change of 200,000 topics with the longest names has 110 MB."""

_METHOD = pb.DESCRIPTOR.services_by_name["ReplicaService"].methods_by_name["FollowTables"]
_PATH = f"/{_METHOD.containing_service.full_name}/{_METHOD.name}"
_START_ANEW = frozenset({"EPOCH_CHANGED", "REVISION_COMPACTED"})

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # or a try would wait for the backoff of the one before
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
)

_log = structlog.get_logger(__name__)


class LeaderStream:
    """Follows one of several leaders, the next one when it is lost, until cancelled."""

    def __init__(
        self,
        leaders: Sequence[str],
        new_intake: Callable[[], ReplicaIntake],
        on_bookmark: Callable[[ReplicaTables], Awaitable[None]],
        *,
        security: ClientSecurity | None = None,
        rng: Random | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects to nobody yet.

        Args:
            leaders: Whom to follow: targets of gRPC, in the order in which they are tried.
            on_bookmark: Told whenever the copy that is being filled is as its leader is.
            security: What to show to leaders and to check theirs with; None: no TLS.
        """
        self._leaders = leaders
        self._new_intake = new_intake
        self._on_bookmark = on_bookmark
        self._writer = TableWriter()
        self._security = security
        self._backoff = Backoff(FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS, JITTER, rng=rng or SystemRandom())
        self._monotonic = monotonic
        self._turn = 0
        self._failures = 0
        self._intake: ReplicaIntake | None = None
        self.leader_name = ""
        """The leader's name; empty if none was ever reached."""
        self.problem = "not connected yet"
        """Why there is no stream; empty if there is one."""

    @property
    def leader(self) -> str:
        """The leader that it follows, or tries to."""
        return self._leaders[self._turn % len(self._leaders)]

    async def run(self) -> None:
        while True:
            problem = await self._follow_once()
            if problem is None:
                continue
            if not self.problem or self._failures == 0:
                _log.warning("leader_lost", leader=self.leader, problem=problem)
            self.problem = problem
            self._turn += 1
            self._failures += 1
            await asyncio.sleep(self._backoff.after(self._failures))

    async def _follow_once(self) -> str | None:
        """Follows the leader whose turn it is until that fails. Returns why; None to begin anew at once."""
        try:
            await self._follow()
        except grpc.aio.AioRpcError as error:
            rich = RichError.of(error)
            if rich.reason in _START_ANEW and self._intake is not None:
                _log.info("copy_begins_anew", leader=self.leader, reason=rich.reason)
                self._intake = None
                return None
            return str(rich)
        except TimeoutError:
            return f"said nothing for {SILENCE_SECONDS:g} s"
        except (UnusableSnapshot, OutOfStep, TooMuchSent, CopyTooLarge, DecodeError) as error:
            await self._discard()
            return f"sends what cannot be used: {error}"
        except Exception as error:  # noqa: BLE001 - a copy is made anew, whatever is wrong with it
            _log.exception("copy_defect", leader=self.leader)
            await self._discard()
            return f"defect of this copy: {error!r}"
        return "ended the stream"

    async def _discard(self) -> None:
        """Begins anew with the next stream. A snapshot that is not whole is freed in slices."""
        intake, self._intake = self._intake, None
        if intake is not None:
            await self._writer.read(intake.let_go)

    async def _follow(self) -> None:
        request = pb.FollowTablesRequest()
        if self._intake is not None and self._intake.tables is not None:
            self._intake.stream_ended()
            state = self._intake.tables.state
            request.resume_after.epoch, request.resume_after.revision = state.identity.epoch, state.revision
        else:
            self._intake = self._new_intake()
        async with open_aio_channel(self.leader, _OPTIONS, self._security) as channel:
            call = channel.unary_stream(_PATH, pb.FollowTablesRequest.SerializeToString, None)(request)
            try:
                await self._read(call, self._intake)
            finally:
                call.cancel()

    async def _read(self, call: Any, intake: ReplicaIntake) -> None:
        messages = aiter(call)
        account = self._account(intake)
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    encoded = await anext(messages)
            except StopAsyncIteration:
                return
            message = pb.FollowTablesResponse.FromString(encoded)
            account.take(len(encoded), rows_in(message))
            if message.HasField("tables"):
                self.leader_name = message.tables.header.namesrv_name[:MAX_TEXT_LENGTH]
            held_before = _position(intake)
            await self._writer.apply_each(intake.take(message))
            if intake.caught_up or _position(intake) != held_before:
                account = self._account(intake)
            if intake.caught_up:
                await self._caught_up(intake)

    def _account(self, intake: ReplicaIntake) -> Intake:
        """The account of what comes next: the snapshot, or changes until one is made."""
        if intake.tables is None:
            return Intake("the snapshot", SNAPSHOT_LIMITS, self._monotonic)
        return Intake(f"the change after revision {intake.tables.state.revision}", CHANGE_LIMITS, self._monotonic)

    async def _caught_up(self, intake: ReplicaIntake) -> None:
        assert intake.tables is not None, "there are no bookmarks before the snapshot is whole"
        if self.problem:
            self.problem, self._failures = "", 0
            _log.info(
                "leader_followed", leader=self.leader, name=self.leader_name, revision=intake.tables.state.revision
            )
        await self._on_bookmark(intake.tables)


def _position(intake: ReplicaIntake) -> int | None:
    """The revision that a copy has; None before its snapshot is whole."""
    return None if intake.tables is None else intake.tables.state.revision
