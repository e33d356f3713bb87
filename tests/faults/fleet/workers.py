"""Threads that look up, watch, administer and read journals during a run.

They continue over a new connection when they have lost one.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import grpc
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as admin_pb
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.grpc_errors import RichError
from tests.faults.history import History, as_json
from tests.support.programs.processes import Client, eventually

TIMEOUT = 3.0
"""Deadline of a lookup, seconds."""
WATCH_SECONDS = 600.0
"""Longest life of one watch; the next one continues where it ended."""
RECONNECT_SECONDS = 0.1
LOOKUP_PAUSE_SECONDS = 0.1
CHANGE_PAUSE_SECONDS = 0.5
"""Between two changes by an operator."""
CALL_TIMEOUT = 5.0
"""Deadline of an operator's call, seconds."""
NAMESPACE = "faults"
KEYS = ("k0", "k1", "k2", "k3")
SETTING = "scanNotActiveBrokerInterval"
"""Set to values close to its default, so that brokers expire as before."""
DRAINED = "broker-c"
HELD_TOPIC = "HeldTopic"
SAYS_NOTHING = frozenset({"", "INTERNAL_DEFECT"})
"""Reasons of errors that do not say whether something was changed; all others say that nothing was."""

Connect = Callable[[], AbstractContextManager[Client]]


class Worker:
    """A thread that calls one name server until the end. What goes wrong with calls is recorded, not raised."""

    def __init__(self, name: str, server: str, connect: Connect, history: History) -> None:
        self.name = name
        self.server = server
        self.history = history
        self.ending = threading.Event()
        self.defect: BaseException | None = None
        """What ended the thread too early."""
        self._connect = connect
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name=f"{name} at {server}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        eventually(self._has_ended)

    def work(self, client: Client) -> None:
        """Calls until the end, or until a call fails with what says that the connection is lost."""
        raise NotImplementedError

    def hold(self, call: Any) -> Any:
        """Notes the stream that is open, so that it can be ended from outside."""
        self._call = call
        return call

    def failed(self, error: RichError) -> None:
        """A call failed."""
        self.history.add("failed", who=self.name, server=self.server, code=error.code.name, reason=error.reason)

    def _has_ended(self) -> bool:
        if self._call is not None:
            self._call.cancel()
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self.ending.wait(RECONNECT_SECONDS):
                with self._connect() as client:
                    try:
                        self.work(client)
                    except grpc.RpcError as error:
                        if not self.ending.is_set():
                            self.failed(RichError.of(error))
        except BaseException as defect:
            self.defect = defect
            raise


class Lookups(Worker):
    """Looks the same topics up, again and again. An answer like the one before is recorded without its content."""

    def __init__(self, server: str, connect: Connect, history: History, topics: Sequence[str]) -> None:
        super().__init__("lookups", server, connect, history)
        self._request = pb.BatchGetTopicRoutesRequest(topics=topics)
        self.answers = 0
        """How many are recorded."""
        self._before: pb.BatchGetTopicRoutesResponse | None = None

    def work(self, client: Client) -> None:
        """Looks up."""
        while not self.ending.wait(LOOKUP_PAUSE_SECONDS):
            began = self.history.now()
            answer = client.routes.BatchGetTopicRoutes(self._request, timeout=TIMEOUT)
            content = {"again": True} if answer == self._before else {"answer": as_json(answer)}
            self.history.add("lookup", server=self.server, began=began, **content)
            self._before = answer
            self.answers += 1


class Watcher(Worker):
    """Watches, and continues after its last bookmark, or anew when the epoch has changed."""

    def __init__(
        self,
        name: str,
        server: str,
        connect: Connect,
        history: History,
        topics: Sequence[str],
        prefixes: Sequence[str] = (),
    ) -> None:
        super().__init__(name, server, connect, history)
        self._asked = pb.WatchTopicRoutesRequest(topics=topics, topic_prefixes=prefixes)
        self._bookmark: tuple[str, int] | None = None
        self._streams = 0

    def work(self, client: Client) -> None:
        """Opens a stream and reads it to its end."""
        request = pb.WatchTopicRoutesRequest()
        request.CopyFrom(self._asked)
        if self._bookmark is not None:
            request.resume_after.epoch, request.resume_after.revision = self._bookmark
        self._streams += 1
        self._note("opened", request=as_json(request))
        for message in self.hold(client.routes.WatchTopicRoutes(iter([request]), timeout=WATCH_SECONDS)):
            self._note("message", message=as_json(message))
            if message.bookmark:
                self._bookmark = message.header.epoch, message.header.revision

    def failed(self, error: RichError) -> None:
        """A stream ended."""
        super().failed(error)
        if error.reason in {"EPOCH_CHANGED", "REVISION_COMPACTED"}:
            self._bookmark = None

    def _note(self, event: str, **fields: object) -> None:
        self.history.add("watch", watcher=self.name, server=self.server, stream=self._streams, event=event, **fields)


class Operator(Worker):
    """An operator of one name server, who changes something, then reads everything, again and again.

    Calls are made one at a time, so that whatever was acknowledged last is what must be read; what a lost call did
    shows soon after.
    """

    def __init__(self, server: str, connect: Connect, history: History, rng: random.Random) -> None:
        super().__init__("operator", server, connect, history)
        self._rng = rng
        self._number = 0

    def work(self, client: Client) -> None:
        """Writes and reads."""
        self._read(client)
        while not self.ending.wait(CHANGE_PAUSE_SECONDS):
            self._number += 1
            item, value, call, request = self._rng.choice(self._changes(client))
            began = self.history.now()
            try:
                call(request, timeout=CALL_TIMEOUT)
            except grpc.RpcError as error:
                is_known = RichError.of(error).reason not in SAYS_NOTHING
                self._note(item, value, began, "no" if is_known else "unknown")
                if not is_known:
                    raise
            else:
                self._note(item, value, began, "ok")
            self._read(client)

    def _note(self, item: str, value: str | None, began: float, outcome: str) -> None:
        self.history.add("write", server=self.server, item=item, value=value, began=began, outcome=outcome)

    def _changes(self, client: Client) -> Sequence[tuple[str, str | None, Any, Message]]:
        """What can be changed next: an item, its value, and the call that gives the item this value."""
        admin, number = client.admin, str(self._number)
        key, seconds = self._rng.choice(KEYS), str(10_000 + self._number % 3_600)
        put = admin_pb.PutKvConfigRequest(namespace=NAMESPACE, key=key, value=number)
        wipe = admin_pb.WipeWritePermOfBrokerRequest(force=True, broker_name=DRAINED, cluster_name="DefaultCluster")
        add = admin_pb.AddWritePermOfBrokerRequest(broker_name=DRAINED, cluster_name="DefaultCluster")
        hold = admin_pb.DeleteTopicRequest(force=True, topic=HELD_TOPIC, hold=True)
        update = admin_pb.UpdateNamesrvConfigRequest(values={SETTING: seconds})
        return (
            (f"kv {key}", number, admin.PutKvConfig, put),
            (f"kv {key}", None, admin.DeleteKvConfig, admin_pb.DeleteKvConfigRequest(namespace=NAMESPACE, key=key)),
            ("drain", "wiped", admin.WipeWritePermOfBroker, wipe),
            ("drain", None, admin.AddWritePermOfBroker, add),
            ("hold", "held", admin.DeleteTopic, hold),
            ("hold", None, admin.ReleaseTopicHold, admin_pb.ReleaseTopicHoldRequest(topic=HELD_TOPIC)),
            ("setting", seconds, admin.UpdateNamesrvConfig, update),
        )

    def _read(self, client: Client) -> None:
        began = self.history.now()
        kv = _kv_rows(client)
        intents = client.admin.ListIntents(admin_pb.ListIntentsRequest(), timeout=CALL_TIMEOUT).intents
        entries = client.admin.GetNamesrvConfig(admin_pb.GetNamesrvConfigRequest(), timeout=CALL_TIMEOUT).entries
        values: dict[str, str | None] = dict.fromkeys([*(f"kv {key}" for key in KEYS), "drain", "hold"])
        values.update({f"kv {key}": value for key, value in kv.items()})
        for intent in intents:
            if intent.kind == admin_pb.Intent.KIND_TOPIC_HOLD:
                values["hold"] = "held"
            elif intent.kind == admin_pb.Intent.KIND_WIPE_WRITE_PERM:
                values["drain"] = "wiped"
        values["setting"] = next(entry.value for entry in entries if entry.key == SETTING)
        self.history.add("read", server=self.server, began=began, values=values)


def _kv_rows(client: Client) -> dict[str, str]:
    request = admin_pb.ListKvConfigsRequest(namespace=NAMESPACE)
    try:
        return {row.key: row.value for row in client.admin.ListKvConfigs(request, timeout=CALL_TIMEOUT).kv_configs}
    except grpc.RpcError as error:
        if RichError.of(error).reason == "KV_NOT_FOUND":
            return {}
        raise


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
            status = pb.GetNamesrvStatusRequest()
            header = client.routes.GetNamesrvStatus(status, timeout=CALL_TIMEOUT).header
            for group in self._groups:
                if self._reached[header.epoch, group] == header.revision:
                    continue  # a quiet night would be more records than all its faults
                self._read(client, header.epoch, group, header.revision)

    def _read(self, client: Client, epoch: str, group: str, up_to: int) -> None:
        reached = self._reached[epoch, group]
        request = admin_pb.ListAuditEntriesRequest(
            broker_name=group, page_size=PAGE, after_epoch=epoch, after_revision=reached
        )
        told = []
        while True:
            page = client.admin.ListAuditEntries(request, timeout=CALL_TIMEOUT)
            if page.header.epoch != epoch:
                return  # that life is over
            # What came in the meantime comes next time.
            told += [_told(entry) for entry in page.entries if entry.revision <= up_to]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        self.history.add("journal", server=self.server, epoch=epoch, group=group, up_to=up_to, entries=told)
        self._reached[epoch, group] = up_to


def _told(entry: admin_pb.AuditEntry) -> dict[str, object]:
    reason = route_data_pb2.RemovalReason.Name(entry.removal_reason).removeprefix("REMOVAL_REASON_")
    return {
        "revision": entry.revision,
        "removed": entry.removed_broker_count,
        "reason": reason,
        "summary": entry.summary,
    }
