"""Commands about the KV configuration and settings, and backups of both with the intents of operators.

A backup has the calls that make it so again. Routes are not in it, because brokers report them.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.files import disk
from namesrv_common.files.regular_files import read_at_most
from namesrv_common.printable import counted
from namesrv_common.version import __version__
from nsctl.commands.change import DryRun, Force, awaited, call_of, made, note_in_use, on_all, result_of
from nsctl.held import all_intents, kv_config, kv_configs
from nsctl.output import Row, iso, row
from nsctl.session import WARNED, Session

# The KV configuration and settings.

Namespace = Annotated[str, typer.Argument(help="Namespace.")]
Key = Annotated[str, typer.Argument(help="Key.")]
Expect = Annotated[str | None, typer.Option("--expect", help="Only if the key has this value; else CONFLICT.")]
IfAbsent = Annotated[bool, typer.Option("--if-absent", help="Only if the key does not exist; else CONFLICT.")]
SETTING = ("setting=key", "value")


def kv_get(session: Session, namespace: Namespace, key: Key) -> None:
    """Shows a value of the KV configuration, at each name server."""
    request = pb.GetKvConfigRequest(namespace=namespace, key=key)
    answers = session.each(lambda server: server.admin.GetKvConfig(request).value)
    rows = [{"endpoint": endpoint, "value": value} for endpoint, value in answers.items()]
    session.show(rows, ("endpoint", "value"))


def kv_put(
    session: Session,
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(help="Value.")],
    *,
    expect: Expect = None,
    if_absent: IfAbsent = False,
    dry_run: DryRun = False,
) -> None:
    """Sets a value of the KV configuration (mqadmin updateKvConfig)."""
    if if_absent and expect is not None:
        raise typer.BadParameter("--expect and --if-absent exclude each other")
    expected = pb.KvExpectation(value=expect) if if_absent or expect is not None else None
    request = pb.PutKvConfigRequest(namespace=namespace, key=key, value=value, expected=expected, validate_only=dry_run)
    on_all(session, [request], "previous_value")


def kv_delete(
    session: Session, namespace: Namespace, key: Key, *, expect: Expect = None, dry_run: DryRun = False
) -> None:
    """Removes a value of the KV configuration (mqadmin deleteKvConfig)."""
    expected = None if expect is None else pb.KvExpectation(value=expect)
    request = pb.DeleteKvConfigRequest(namespace=namespace, key=key, expected=expected, validate_only=dry_run)
    on_all(session, [request], "removed")


def kv_list(
    session: Session,
    namespace: Annotated[
        str, typer.Argument(metavar="[NAMESPACE]", help="Namespace. By default lists namespaces.")
    ] = "",
) -> None:
    """Lists the KV configuration of each name server."""
    columns = ("namespace", "key", "value") if namespace else ("namespace",)
    rows = session.rows(lambda server: kv_configs(server, namespace))
    session.show(rows, ("endpoint", *columns))


def settings_show(
    session: Session,
    contains: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only settings whose name contains this.")] = "",
) -> None:
    """Shows the settings in force at each name server (mqadmin getNamesrvConfig)."""
    settings = session.rows(lambda server: server.admin.GetNamesrvConfig(pb.GetNamesrvConfigRequest()).entries)
    rows = [one for one in settings if contains.casefold() in one["key"].casefold()]
    session.show(rows, ("endpoint", *SETTING, "updatable"))


def settings_set(
    session: Session,
    values: Annotated[list[str], typer.Argument(metavar="SETTING=VALUE", help="As `nsctl settings show` names them.")],
    dry_run: DryRun = False,
) -> None:
    """Changes settings (mqadmin updateNamesrvConfig)."""
    pairs = [value.partition("=") for value in values]
    for key, equals, _ in pairs:
        if not equals:
            raise typer.BadParameter(f"{key!r} is not SETTING=VALUE")
    request = pb.UpdateNamesrvConfigRequest(values={key: value for key, _, value in pairs}, validate_only=dry_run)
    rows = session.rows(lambda server: server.admin.UpdateNamesrvConfig(request).entries)
    session.show(rows, ("endpoint", *SETTING))


def kv_export(
    session: Session,
    file: Annotated[Path, typer.Argument(help="New file, such as kvConfig.json. An existing file is an error.")],
) -> None:
    """Writes the KV configuration as a file of RocketMQ's name server (kvConfig.json)."""
    table: dict[str, dict[str, str]] = {}
    for (namespace, key), value in session.servers.first(kv_config).items():
        table.setdefault(namespace, {})[key] = value
    write_new(file, {"configTable": table})
    session.note(f"wrote {counted(sum(map(len, table.values())), 'key')} to {file}")


# Backups.

FORMAT = 1
"""Number of the format, in the file."""
MAX_FILE_BYTES = 64 * 1024 * 1024
"""Largest file that is read: a name server can hold about 5 MiB of its content."""

REQUESTS = (
    pb.PutKvConfigRequest,
    pb.UpdateNamesrvConfigRequest,
    pb.DeleteTopicRequest,
    pb.WipeWritePermOfBrokerRequest,
    pb.AddWritePermOfBrokerRequest,
)
"""Requests that a file may have."""
SUBJECTS = ("namespace", "key", "topic", "cluster_name", "broker_name")
"""Fields that say for people what a call is about."""

File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON, readable by its owner only.")]


def save(session: Session, file: File) -> None:
    """Writes intents, KV configuration and changeable settings of the first that answers to a new file."""
    calls, left_out = session.servers.first(_calls)
    taken_at = iso(time.time_ns() // 1_000_000)
    content = {"format": FORMAT, "version": __version__, "taken_at": taken_at, "calls": calls, "left_out": left_out}
    write_new(file, content)
    session.note(f"{counted(len(calls), 'call')} written to {file}")
    if settings := left_out["settings"]:
        session.note(
            f"left out: {counted(len(settings), 'setting')} that only a start sets; keep its command line or file"
        )
    session.note("left out: the journal, topics deleted without --hold, and what brokers report")
    for intent in left_out["intents"]:
        session.note(f"left out: an intent of a kind that only a newer nsctl knows: {json.dumps(intent)}", WARNED)


def bring_back(session: Session, file: File, force: Force = False, dry_run: DryRun = False) -> None:
    """Applies a file of ``backup save`` to all name servers. Removes nothing."""
    try:
        requests = [_request(one, force=force, dry_run=dry_run) for one in read_file(file)["calls"]]
    except (KeyError, TypeError, ValueError, ParseError) as error:
        raise typer.BadParameter(f"{file} is no file of `nsctl backup save`: {error!r}") from error
    now = time.time() * 1_000
    in_force = [request for request in requests if not 0 < getattr(request, "ends_at_millis", 0) <= now]
    rows: list[Row] = []
    for endpoint, done in session.each(partial(made, requests=in_force)).items():
        awaiting = 0
        for request, answer in done:
            names = [value for field, value in request.ListFields() if field.name in SUBJECTS]
            result = result_of(session, request, answer)
            if awaited(request, answer):
                awaiting += 1
                result += ", awaits registration"
            rows.append({"endpoint": endpoint, "what": " ".join([call_of(request), *names]), "result": result})
        if awaiting:
            text = "about what nobody has registered yet; each takes effect when somebody does"
            session.note(f"{endpoint}: warning: {counted(awaiting, 'intent')} {text}")
    session.show(rows, ("endpoint", "what", "result"))
    note_in_use(session, [str(one["result"]) for one in rows])


def write_new(file: Path, content: object) -> None:
    """Writes JSON to a file that is not there yet. Raises typer.BadParameter if it is, or cannot be written.

    Nothing is left of a file that the disk did not take whole.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                opened.write(text)
        except OSError:
            disk.remove(file)
            raise
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from error


def read_file(file: Path) -> dict[str, Any]:
    """Reads what ``write_new`` wrote. Raises typer.BadParameter if it is something else."""
    try:
        content = json.loads(read_at_most(file, MAX_FILE_BYTES))
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise typer.BadParameter(f"{file} has no format {FORMAT}, which this nsctl knows")
    return content


def _calls(server: NamesrvClient) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """The calls that make what operators made of a name server so again, and the settings and intents left out."""
    config = server.admin.GetNamesrvConfig(pb.GetNamesrvConfigRequest())
    requests: list[Message] = [
        pb.PutKvConfigRequest(namespace=namespace, key=key, value=value)
        for (namespace, key), value in kv_config(server).items()
    ]
    values = {entry.key: entry.value for entry in config.entries if entry.updatable}
    requests.append(pb.UpdateNamesrvConfigRequest(values=values))
    unknown: list[Any] = []
    for intent in all_intents(server):
        if (request := _of_intent(intent)) is None:
            unknown.append(row(intent))
        else:
            requests.append(request)
    calls = [
        {"call": call_of(one), "request": MessageToDict(one, preserving_proto_field_name=True)} for one in requests
    ]
    settings = [entry.key for entry in config.entries if not entry.updatable]
    return calls, {"settings": settings, "intents": unknown}


def _of_intent(intent: pb.Intent) -> Message | None:
    """The call that makes an intent; None if this nsctl does not know its kind."""
    named: dict[str, Any] = {"comment": intent.comment}
    named |= {"cluster_name": intent.cluster_name} if intent.HasField("cluster_name") else {}
    ends: dict[str, Any] = {"ends_at_millis": intent.ends_at_millis} if intent.HasField("ends_at_millis") else {}
    if intent.kind == pb.Intent.KIND_TOPIC_HOLD:
        return pb.DeleteTopicRequest(topic=intent.topic, hold=True, **named, **ends)
    if intent.kind == pb.Intent.KIND_WIPE_WRITE_PERM:
        return pb.WipeWritePermOfBrokerRequest(broker_name=intent.broker_name, **named, **ends)
    if intent.kind == pb.Intent.KIND_ADD_WRITE_PERM:
        return pb.AddWritePermOfBrokerRequest(broker_name=intent.broker_name, **named)
    return None


def _request(one: dict[str, Any], *, force: bool, dry_run: bool) -> Any:
    """The request of a call of the file. Raises KeyError, TypeError, ValueError or ParseError."""
    request = ParseDict(one["request"], {kind.DESCRIPTOR.name: kind for kind in REQUESTS}[f"{one['call']}Request"]())
    request.validate_only = dry_run
    if isinstance(request, pb.WipeWritePermOfBrokerRequest | pb.DeleteTopicRequest):
        request.force = force
    return request
