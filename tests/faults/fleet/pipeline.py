"""The route pipeline beside a fleet: it follows all name servers, is killed whole, and has its log read in the end."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import grpc
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.grpc_errors import RichError
from route_pipeline.log.place import Place
from tests.faults.fleet.pipeline_log import lives_of
from tests.faults.fleet.workers import TIMEOUT, Connect, Worker
from tests.faults.history import History
from tests.support.programs.pipeline_process import PipelineProcess
from tests.support.programs.processes import BIN, Client, eventually
from tests.support.routes.route_rows import key_of

PIPELINE = "pipeline"
"""Its name in records and ways."""
OPTIONS = ("--option", "onCompacted=resync", "--option", "connectTimeoutSeconds=2", "--option", "timeoutSeconds=10")
LONGEST_SECONDS = 600.0
"""By then a batch, or the whole log, has been read on a busy machine."""
BATCH_SECONDS = 20.0
"""Within this most batches come."""
TABLES = {
    "queues": "topic_queues",
    "groups": "broker_groups",
    "live": "brokers",
    "clusters": "clusters",
    "filters": "filter_servers",
}
"""The pipeline's names of tables."""


class Pipeline:
    """``route-pipeline follow``, which is killed and stopped whole."""

    def __init__(self, folder: Path, history: History, addresses: Sequence[str]) -> None:
        """Starts nothing yet.

        Args:
            folder: Where the log goes, and what it says.
            history: Told of starts and kills.
            addresses: Of the name servers.
        """
        self._log = folder / "log"
        self._said = folder / "pipeline.txt"
        self._history = history
        self._to = ("--namesrv", ",".join(addresses), "--out", str(self._log), *OPTIONS)
        self._process: PipelineProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start(self) -> None:
        """Starts to follow, and goes on where the log ends. Nothing is waited for."""
        self._process = PipelineProcess(self._said, "follow", *self._to, "--every", "1", "--log-format", "json")
        self._note("started")

    def wait_for_batch(self, seconds: float = LONGEST_SECONDS) -> None:
        """Waits for one more batch.

        Raises:
            AssertionError: There is none in time.
        """
        count = self.batches()
        eventually(self.batches, lambda seen: seen > count, seconds)

    def said(self, text: str) -> list[str]:
        """Whole lines of its log with that text, since it was started first."""
        *lines, _unfinished = self._said.read_text(encoding="utf-8").split("\n")
        return [line for line in lines if text in line]

    def batches(self) -> int:
        """Batches that are whole."""
        return sum(1 for _ in self._log.glob("changes/_delta_log/*.json"))

    def kill(self) -> None:
        """Kills the process group, as a crash would."""
        self._note("killed")
        self._end()

    def stop(self) -> None:
        """Stops the process group: it keeps its connections, and does nothing."""
        self._note("stopped")
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets what was stopped go on."""
        self._signal(signal.SIGCONT)
        self._note("continued")

    def read_rest(self) -> None:
        """Ends it, takes what is left in one batch, and has what the log holds recorded."""
        self.kill()
        with self._said.open("ab") as said:
            command = [str(BIN / "route-pipeline"), "ingest", *self._to]
            subprocess.run(command, check=True, stdout=said, stderr=said, timeout=LONGEST_SECONDS)
        for life in lives_of(Place(str(self._log))):
            self._history.add("ingested", **life)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)

    def _note(self, event: str) -> None:
        self._history.add("process", name=PIPELINE, event=event, batches=self.batches())


def kill_after_a_batch(pipeline: Pipeline, rng: random.Random) -> None:
    """Kills it in the middle of its work, or sometimes wherever it is."""
    if rng.random() < 0.75:
        # There is none while another fault of the same round keeps a name server away.
        with suppress(AssertionError):
            pipeline.wait_for_batch(BATCH_SECONDS)
    pipeline.kill()


class Changes(Worker):
    """Reads every change of a name server: what a log must have."""

    def __init__(self, server: str, connect: Connect, history: History, pause_seconds: float) -> None:
        super().__init__("changes", server, connect, history)
        self._pause_seconds = pause_seconds
        self._reached: tuple[str, int] | None = None
        """Epoch, and the revision up to which all changes are recorded."""
        self._begin = 0
        """Where to begin in an epoch: at its first change, unless that is not told any more."""

    def work(self, client: Client) -> None:
        """Reads on."""
        while not self.ending.wait(self._pause_seconds):
            header = client.routes.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), timeout=TIMEOUT).header
            if self._reached is None or self._reached[0] != header.epoch:
                self._reached = header.epoch, self._begin
            try:
                self._read(client, *self._reached, header.revision)
            except grpc.RpcError as error:
                if RichError.of(error).reason == "REVISION_COMPACTED":
                    self._begin = header.revision
                self._reached = None
                raise
            self._begin = 0

    def _read(self, client: Client, epoch: str, after: int, up_to: int) -> None:
        if after >= up_to:
            return
        request = pb.StreamRouteChangesRequest(after=pb.ResumePoint(epoch=epoch, revision=after), up_to_revision=up_to)
        rows = [
            [message.header.revision, *_row(change)]
            for message in self.hold(client.routes.StreamRouteChanges(request, timeout=TIMEOUT))
            for change in message.changes.changes
        ]
        self.history.add("changes", server=self.server, epoch=epoch, after=after, up_to=up_to, rows=rows)
        self._reached = epoch, up_to


def _row(change: pb.RouteChange) -> list[object]:
    """Table, key, operation and content of a change, as :mod:`tests.faults.fleet.pipeline_log` has them."""
    table, *key = key_of(change)
    kind = change.WhichOneof("row") or ""
    op = "put"
    content: list[object] = []
    if kind.endswith("removed"):
        reason = route_data_pb2.RemovalReason.Name(getattr(change, kind).reason)
        op, content = "remove", [reason.removeprefix("REMOVAL_REASON_")]
    elif kind == "topic_put":
        (queue,) = change.topic_put.queue_datas
        content = [queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag]
    elif kind == "broker_put":
        addrs = change.broker_put.broker_addrs
        content = [[{"broker_id": broker.broker_id, "broker_addr": broker.broker_addr} for broker in addrs]]
    elif kind == "live_put":
        live = change.live_put
        counter = live.data_version.counter if live.HasField("data_version") else None
        content = [live.broker_name, live.broker_id, counter]
    elif kind == "filter_put":
        content = [list(change.filter_put.filter_servers)]
        if not change.filter_put.filter_servers:
            op, content = "remove", [None]
    return [TABLES[table], "/".join(key), op, content]
