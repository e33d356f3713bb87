"""An operator of one name server, who writes and reads back, and a reader of its journal.

Written directly and one call at a time, so that whatever was acknowledged last is what must be read; what a lost call
did shows soon after.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import grpc
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv_common.grpc_errors import RichError
from tests.faults.fleet.workers import Connect, Worker
from tests.faults.history import History
from tests.support.programs.processes import Client

TIMEOUT = 5.0
NAMESPACE = "faults"
KEYS = ("k0", "k1", "k2", "k3")
SETTING = "scanNotActiveBrokerInterval"
"""Set to values close to its default, so that brokers expire as before."""
DRAINED = "broker-c"
HELD_TOPIC = "HeldTopic"
SAYS_NOTHING = frozenset({"", "INTERNAL_DEFECT"})
"""Reasons of errors that do not say whether something was changed; all others say that nothing was."""


class Operator(Worker):
    """Changes something, then reads everything, again and again."""

    def __init__(
        self, server: str, connect: Connect, history: History, rng: random.Random, pause_seconds: float
    ) -> None:
        super().__init__("operator", server, connect, history)
        self._rng = rng
        self._pause_seconds = pause_seconds
        self._number = 0

    def work(self, client: Client) -> None:
        """Writes and reads."""
        self._read(client)
        while not self.ending.wait(self._pause_seconds):
            self._number += 1
            item, value, call = self._rng.choice([self._kv, self._drain, self._hold, self._set])(client)
            began = self.history.now()
            try:
                call()
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

    def _kv(self, client: Client) -> tuple[str, str | None, Callable[[], object]]:
        key = self._rng.choice(KEYS)
        if self._rng.random() < 0.2:
            delete = pb.DeleteKvConfigRequest(namespace=NAMESPACE, key=key)
            return f"kv {key}", None, lambda: client.admin.DeleteKvConfig(delete, timeout=TIMEOUT)
        value = str(self._number)
        put = pb.PutKvConfigRequest(namespace=NAMESPACE, key=key, value=value)
        return f"kv {key}", value, lambda: client.admin.PutKvConfig(put, timeout=TIMEOUT)

    def _drain(self, client: Client) -> tuple[str, str | None, Callable[[], object]]:
        if self._rng.random() < 0.5:
            wipe = pb.WipeWritePermOfBrokerRequest(force=True, broker_name=DRAINED, cluster_name="DefaultCluster")
            return "drain", "wiped", lambda: client.admin.WipeWritePermOfBroker(wipe, timeout=TIMEOUT)
        add = pb.AddWritePermOfBrokerRequest(broker_name=DRAINED, cluster_name="DefaultCluster")
        return "drain", None, lambda: client.admin.AddWritePermOfBroker(add, timeout=TIMEOUT)

    def _hold(self, client: Client) -> tuple[str, str | None, Callable[[], object]]:
        if self._rng.random() < 0.5:
            hold = pb.DeleteTopicRequest(force=True, topic=HELD_TOPIC, hold=True)
            return "hold", "held", lambda: client.admin.DeleteTopic(hold, timeout=TIMEOUT)
        release = pb.ReleaseTopicHoldRequest(topic=HELD_TOPIC)
        return "hold", None, lambda: client.admin.ReleaseTopicHold(release, timeout=TIMEOUT)

    def _set(self, client: Client) -> tuple[str, str | None, Callable[[], object]]:
        value = str(10_000 + self._number % 3_600)
        update = pb.UpdateNamesrvConfigRequest(values={SETTING: value})
        return "setting", value, lambda: client.admin.UpdateNamesrvConfig(update, timeout=TIMEOUT)

    def _read(self, client: Client) -> None:
        began = self.history.now()
        kv = _kv_rows(client)
        intents = client.admin.ListIntents(pb.ListIntentsRequest(), timeout=TIMEOUT).intents
        entries = client.admin.GetNamesrvConfig(pb.GetNamesrvConfigRequest(), timeout=TIMEOUT).entries
        values: dict[str, str | None] = dict.fromkeys([*(f"kv {key}" for key in KEYS), "drain", "hold"])
        values.update({f"kv {key}": value for key, value in kv.items()})
        for intent in intents:
            if intent.kind == pb.Intent.KIND_TOPIC_HOLD:
                values["hold"] = "held"
            elif intent.kind == pb.Intent.KIND_WIPE_WRITE_PERM:
                values["drain"] = "wiped"
        values["setting"] = next(entry.value for entry in entries if entry.key == SETTING)
        self.history.add("read", server=self.server, began=began, values=values)


def _kv_rows(client: Client) -> dict[str, str]:
    request = pb.ListKvConfigsRequest(namespace=NAMESPACE)
    try:
        return {row.key: row.value for row in client.admin.ListKvConfigs(request, timeout=TIMEOUT).kv_configs}
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
            # What came in the meantime comes next time.
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
