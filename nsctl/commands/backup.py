"""Commands that keep what operators made of a name server, and bring it back: intents, KV configuration, settings.

Routes are not in it, because brokers report them. The topics of a broker are its own:
``nsctl agent export-topics`` and ``import-topics``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb

from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import NamesrvClient
from groundwork.version import __version__
from nsctl.commands.change import DryRun, all_intents
from nsctl.output import Row, iso
from nsctl.session import Session

FORMAT = 1
"""Number of the format, in the file."""
MAX_FILE_BYTES = 64 * 1024 * 1024
"""Largest file that is read: all that a name server can hold of these has a few megabytes."""

File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON, readable by its owner only.")]


def save(session: Session, file: File) -> None:
    """Writes intents, KV configuration and changeable settings of the first that answers to a new file."""
    kept = session.servers.first(_kept)
    write_new(file, {"format": FORMAT, "version": __version__, "taken_at": iso(_now()), **kept})
    counts = ", ".join(f"{len(kept[part]):,} {part}" for part in ("intents", "kv", "settings"))
    session.note(f"{counts} of {kept['namesrv']} are in {file}")


def bring_back(session: Session, file: File, dry_run: DryRun = False) -> None:
    """Makes what a file of ``backup save`` has so at all name servers; takes nothing away that is there beside it."""
    kept = read_file(file, FORMAT)
    try:
        requests = list(_requests(kept, _now(), dry_run=dry_run))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise typer.BadParameter(f"{file} is no file of `nsctl backup save`: {error!r}") from error
    made = session.servers.each(lambda server: list(_made_so(server, requests)))
    rows: list[Row] = []
    for answer in made:
        for what, failed in answer.value or ():
            if failed is not None:
                session.failed(failed)
            done = "would be done" if dry_run else "done"
            result = done if failed is None else f"failed: {failed.reason}"
            rows.append({"endpoint": str(answer.endpoint), "what": what, "result": result})
    session.show(rows, ("endpoint", "what", "result"))


def write_new(file: Path, content: object) -> None:
    """Writes JSON to a file that is not there yet. Raises typer.BadParameter if it is, or cannot be written."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from error


def read_file(file: Path, wanted_format: int) -> dict[str, Any]:
    """Reads what ``write_new`` wrote. Raises typer.BadParameter if it is something else."""
    try:
        if not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
            raise typer.BadParameter(f"{file} is no file, or larger than {MAX_FILE_BYTES >> 20} MiB")
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != wanted_format:
        raise typer.BadParameter(f"{file} has no format {wanted_format}, which this nsctl knows")
    return content


def _kept(server: NamesrvClient) -> dict[str, Any]:
    config = server.call("GetNamesrvConfig", pb.GetNamesrvConfigRequest())
    assert isinstance(config, pb.GetNamesrvConfigResponse)
    return {
        "namesrv": config.header.namesrv_name,
        "intents": [_intent(intent) for intent in all_intents(server)],
        "kv": [
            {"namespace": one.namespace, "key": one.key, "value": one.value}
            for space in _kv(server, "")
            for one in _kv(server, space.namespace)
        ],
        "settings": {
            entry.key: entry.pending_value if entry.HasField("pending_value") else entry.value
            for entry in config.entries
            if entry.updatable
        },
    }


def _kv(server: NamesrvClient, namespace: str) -> Iterator[pb.KvConfig]:
    for page in server.pages("ListKvConfigs", pb.ListKvConfigsRequest(namespace=namespace)):
        assert isinstance(page, pb.ListKvConfigsResponse)
        yield from page.kv_configs


def _intent(intent: pb.Intent) -> dict[str, Any]:
    return {
        "kind": pb.Intent.Kind.Name(intent.kind),
        "cluster": intent.cluster_name if intent.HasField("cluster_name") else None,
        "broker": intent.broker_name,
        "topic": intent.topic,
        "caller": intent.caller,
        "since": iso(intent.since_millis),
        "why": intent.comment,
        "ends_at_millis": intent.ends_at_millis if intent.HasField("ends_at_millis") else None,
    }


_Wanted = tuple[str, str, Message]
"""What it is for people, the call, the request."""


def _requests(kept: dict[str, Any], now_millis: int, *, dry_run: bool) -> Iterator[_Wanted]:
    """The calls that make what was kept so again. Intents that have ended meanwhile are left out."""
    for one in kept["kv"]:
        request = pb.PutKvConfigRequest(**one, validate_only=dry_run)
        yield f"kv {one['namespace']} {one['key']}", "PutKvConfig", request
    if kept["settings"]:
        values = pb.UpdateNamesrvConfigRequest(values=kept["settings"], validate_only=dry_run)
        yield f"{len(kept['settings']):,} settings", "UpdateNamesrvConfig", values
    for one in kept["intents"]:
        ends_at = one["ends_at_millis"]
        if ends_at is None or ends_at > now_millis:
            yield _OF_KIND[one["kind"]](one, dry_run)


def _wipe(one: dict[str, Any], dry_run: bool) -> _Wanted:
    request = pb.WipeWritePermOfBrokerRequest(
        broker_name=one["broker"],
        cluster_name=one["cluster"],
        comment=one["why"],
        ends_at_millis=one["ends_at_millis"],
        validate_only=dry_run,
    )
    return f"drain {one['broker']}", "WipeWritePermOfBroker", request


def _add(one: dict[str, Any], dry_run: bool) -> _Wanted:
    request = pb.AddWritePermOfBrokerRequest(
        broker_name=one["broker"], cluster_name=one["cluster"], comment=one["why"], validate_only=dry_run
    )
    return f"write permission of {one['broker']}", "AddWritePermOfBroker", request


def _hold(one: dict[str, Any], dry_run: bool) -> _Wanted:
    request = pb.DeleteTopicRequest(
        topic=one["topic"],
        cluster_name=one["cluster"],
        hold=True,
        comment=one["why"],
        ends_at_millis=one["ends_at_millis"],
        validate_only=dry_run,
    )
    return f"hold {one['topic']}", "DeleteTopic", request


_OF_KIND: dict[str, Callable[[dict[str, Any], bool], _Wanted]] = {
    "KIND_WIPE_WRITE_PERM": _wipe,
    "KIND_ADD_WRITE_PERM": _add,
    "KIND_TOPIC_HOLD": _hold,
}


def _made_so(server: NamesrvClient, requests: list[_Wanted]) -> Iterator[tuple[str, CallError | None]]:
    """What became of each call: one that is refused does not keep the others from being made."""
    for what, call, request in requests:
        try:
            server.call(call, request)
        except CallError as error:
            yield what, error
            if error.unreachable and not error.error.reason:
                return  # it does not answer: to ask on would take a time-out each
        else:
            yield what, None


def _now() -> int:
    return time.time_ns() // 1_000_000
