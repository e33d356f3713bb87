"""Commands that change something, at all name servers unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb

from groundwork.namesrv_client import NamesrvClient
from nsctl.output import For, Row, millis_from_now, row
from nsctl.session import Session

Why = Annotated[str, typer.Option("--why", help="Why, for the journal. Left out, a former reason stays.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what it would do.")]
Cluster = Annotated[str | None, typer.Option(help="Cluster, where two have a group of that name.")]

BLAST = (
    "topics_changed=blast_radius.topics_changed",
    "losing_last_writable_queue=blast_radius.topics_losing_last_writable_queue",
    "vanishing=blast_radius.topics_vanishing",
    "such_as=blast_radius.sample_topics",
)
"""What a change does, or would do, to the routes."""

INTENT = (
    "kind",
    "cluster=cluster_name",
    "broker=broker_name",
    "topic",
    "since",
    "until=ends_at",
    "caller",
    "why=comment",
)
SETTING = ("setting=key", "value", "from_next_start=pending_value")


def drain(
    session: Session,
    broker: Annotated[str, typer.Argument(help="Name of the broker group.")],
    *,
    cluster: Cluster = None,
    why: Why = "",
    duration: For = None,
    dry_run: DryRun = False,
) -> None:
    """Takes write permission from a broker group until it is restored (mqadmin wipeWritePerm)."""
    request = pb.WipeWritePermOfBrokerRequest(
        broker_name=broker,
        cluster_name=cluster,
        comment=why,
        validate_only=dry_run,
        ends_at_millis=millis_from_now(duration),
    )
    _on_all(session, request, "wipe_topic_count")


def restore(
    session: Session,
    broker: Annotated[str, typer.Argument(help="Name of the broker group.")],
    cluster: Cluster = None,
    why: Why = "",
    dry_run: DryRun = False,
) -> None:
    """Gives write permission back to a broker group (mqadmin addWritePerm)."""
    request = pb.AddWritePermOfBrokerRequest(
        broker_name=broker, cluster_name=cluster, comment=why, validate_only=dry_run
    )
    _on_all(session, request, "add_topic_count")


def delete_topic(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    *,
    cluster: Annotated[str | None, typer.Option(help="Only in this cluster.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Keep registrations from bringing it back.")] = False,
    duration: For = None,
    why: Why = "",
    dry_run: DryRun = False,
) -> None:
    """Removes a topic's routes (mqadmin deleteTopic, the name server's part). With --for it is held for that time."""
    request = pb.DeleteTopicRequest(
        topic=topic,
        cluster_name=cluster,
        hold=hold or duration is not None,
        comment=why,
        validate_only=dry_run,
        ends_at_millis=millis_from_now(duration),
    )
    _on_all(session, request, "removed_queue_data_count")


def release_topic(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    cluster: Annotated[str | None, typer.Option(help="Cluster that the hold names, if any.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Lets a topic that was deleted with --hold come back."""
    request = pb.ReleaseTopicHoldRequest(topic=topic, cluster_name=cluster, validate_only=dry_run)
    _on_all(session, request, "restored_queue_data_count")


def confirm_loss(
    session: Session,
    broker: Annotated[str | None, typer.Argument(help="Only this group; else all that the guard holds.")] = None,
    cluster: Cluster = None,
    why: Why = "",
    dry_run: DryRun = False,
) -> None:
    """Says that brokers which the mass-loss guard holds are really gone."""
    request = pb.ConfirmBrokerLossRequest(broker_name=broker, cluster_name=cluster, comment=why, validate_only=dry_run)
    _on_all(session, request, "removed_broker_count")


def all_intents(server: NamesrvClient) -> Iterator[pb.Intent]:
    """The intents that are in force at one name server, oldest first."""
    for page in server.pages("ListIntents", pb.ListIntentsRequest()):
        assert isinstance(page, pb.ListIntentsResponse)
        yield from page.intents


def intents(session: Session) -> None:
    """The intents of operators that are in force, at each name server."""
    rows = session.rows_of_pages("ListIntents", pb.ListIntentsRequest(), "intents")
    session.show(rows, ("endpoint", *INTENT))


def address_claims(session: Session) -> None:
    """Addresses that are kept for brokers that are down, at each name server."""
    rows = session.rows_of_pages("ListAddressClaims", pb.ListAddressClaimsRequest(), "address_claims")
    who = ("cluster=cluster_name", "address=broker_addr", "broker=broker_name", "id=broker_id")
    session.show(rows, ("endpoint", *who, "since", "until=ends_at"))


def release_address(
    session: Session,
    cluster: Annotated[str, typer.Argument(help="Cluster.")],
    address: Annotated[str, typer.Argument(help="HOST:PORT, as `nsctl address claims` shows it.")],
    why: Why = "",
    dry_run: DryRun = False,
) -> None:
    """Lets an address that is kept for a broker that is down be registered by another group."""
    request = pb.ReleaseAddressClaimRequest(
        cluster_name=cluster, broker_addr=address, comment=why, validate_only=dry_run
    )
    _on_all(session, request, "released")


def kv_get(
    session: Session,
    namespace: Annotated[str, typer.Argument(help="Namespace.")],
    key: Annotated[str, typer.Argument(help="Key.")],
) -> None:
    """A value of the KV configuration, at each name server."""
    request = pb.GetKvConfigRequest(namespace=namespace, key=key)
    rows = [
        {"endpoint": str(answer.endpoint), "value": answer.value.value}
        for answer in session.each(lambda server: server.call("GetKvConfig", request))
        if isinstance(answer.value, pb.GetKvConfigResponse)
    ]
    session.show(rows, ("endpoint", "value"))


def kv_put(
    session: Session,
    namespace: Annotated[str, typer.Argument(help="Namespace.")],
    key: Annotated[str, typer.Argument(help="Key.")],
    value: Annotated[str, typer.Argument(help="Value.")],
    dry_run: DryRun = False,
) -> None:
    """Sets a value of the KV configuration (mqadmin updateKvConfig)."""
    request = pb.PutKvConfigRequest(namespace=namespace, key=key, value=value, validate_only=dry_run)
    _on_all(session, request, "previous_value")


def kv_delete(
    session: Session,
    namespace: Annotated[str, typer.Argument(help="Namespace.")],
    key: Annotated[str, typer.Argument(help="Key.")],
    dry_run: DryRun = False,
) -> None:
    """Removes a value of the KV configuration (mqadmin deleteKvConfig)."""
    request = pb.DeleteKvConfigRequest(namespace=namespace, key=key, validate_only=dry_run)
    _on_all(session, request, "removed")


def kv_list(
    session: Session,
    namespace: Annotated[str, typer.Argument(metavar="[NAMESPACE]", help="Namespace; else their names.")] = "",
) -> None:
    """The KV configuration of the first name server that answers."""

    def ask(server: NamesrvClient) -> list[Row]:
        return [
            row(entry)
            for page in server.pages("ListKvConfigs", pb.ListKvConfigsRequest(namespace=namespace))
            for entry in page.kv_configs  # type: ignore[attr-defined]
        ]

    rows = session.servers.first(ask)
    session.show(rows, ("namespace", "key", "value") if namespace else ("namespace",))


def config_show(
    session: Session,
    contains: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only settings with this in their name.")] = "",
) -> None:
    """Settings in force at each name server (mqadmin getNamesrvConfig)."""
    settings = _settings(session, pb.GetNamesrvConfigRequest())
    rows = [one for one in settings if contains.casefold() in one["key"].casefold()]
    session.show(rows, ("endpoint", *SETTING, "updatable", "needs_restart"))


def config_set(
    session: Session,
    values: Annotated[list[str], typer.Argument(metavar="SETTING=VALUE", help="As `nsctl config show` names them.")],
    dry_run: DryRun = False,
) -> None:
    """Changes settings (mqadmin updateNamesrvConfig)."""
    pairs = [value.partition("=") for value in values]
    for key, equals, _ in pairs:
        if not equals:
            raise typer.BadParameter(f"{key!r} is not SETTING=VALUE")
    request = pb.UpdateNamesrvConfigRequest(values={key: value for key, _, value in pairs}, validate_only=dry_run)
    session.show(_settings(session, request), ("endpoint", *SETTING))


def _settings(session: Session, request: Message) -> list[Row]:
    return [
        {"endpoint": str(answer.endpoint), **row(entry)}
        for answer in session.each(lambda server: server.call(_call_of(request), request))
        if answer.value is not None
        for entry in answer.value.entries  # type: ignore[attr-defined]
    ]


def _call_of(request: Message) -> str:
    return request.DESCRIPTOR.name.removesuffix("Request")


def _on_all(session: Session, request: Any, count: str) -> None:
    """Makes a change at all name servers, and shows what came of it at each."""
    rows: list[Row] = []
    for answer in session.servers.each(lambda server: server.call(_call_of(request), request)):
        shown: dict[str, Any] = {"endpoint": str(answer.endpoint)}
        if answer.value is None:
            assert answer.error is not None
            session.failed(answer.error)
            shown["result"] = f"failed: {answer.error.reason}"
        else:
            shown |= {"result": "would be done" if request.validate_only else "done", **row(answer.value)}
        rows.append(shown)
    session.show(rows, ("endpoint", "result", count, *(BLAST if any("blast_radius" in one for one in rows) else ())))
