"""Commands that change something, at all name servers unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer
from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.grpc_errors import CallError
from namesrv_common.printable import counted
from namesrv_common.topic_names import REPLY_SUFFIX, GroupPattern, application_first, is_application
from nsctl.findings import first_few
from nsctl.held import GROUPS, TOPICS, GroupKey, all_intents, drains, group_of, in_words, lacks_writable_queue, tables
from nsctl.output import For, Row, millis_from_now, row
from nsctl.session import REFUSED, Ended, Session

# Broker groups as people name them: one by its name, or several by a pattern.

PATTERN = "CLUSTER/BROKER with * for any characters"
Brokers = Annotated[str, typer.Argument(metavar="BROKER", help=f"Name of the broker group, or {PATTERN}.")]


def groups_named(broker: str, cluster: str | None) -> GroupKey | GroupPattern:
    """Reads the name of a group, or a pattern. The notation of patterns is that of permits.

    The cluster of a group is empty if it is not named.

    Args:
        broker: ``BROKER``, ``CLUSTER/BROKER``, or either with stars; a pattern without a cluster is of every cluster.
        cluster: The option ``--cluster``.

    Raises:
        typer.BadParameter: It is neither, or the cluster is named twice.
    """
    if "/" not in broker and "*" not in broker:
        return GroupKey(cluster or "", broker)
    if "/" in broker and cluster is not None:
        raise typer.BadParameter(f"{broker} names a cluster, and --cluster does too")
    text = broker if "/" in broker else f"{'*' if cluster is None else cluster}/{broker}"
    try:
        pattern = GroupPattern.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return pattern if "*" in text else GroupKey(*text.split("/"))


def groups_of(
    session: Session, named: GroupKey | GroupPattern, ask: Callable[[NamesrvClient], Iterable[GroupKey]], kind: str
) -> list[GroupKey]:
    """The group that was named, or all that match at some name server, sorted. Raises Ended if there are none."""
    if isinstance(named, GroupKey):
        return [named]
    answers = session.each(ask)
    found = sorted({group for groups in answers.values() for group in groups if named.matches(group)})
    if not found:
        raise Ended(f"no {kind} matches {named.text}", REFUSED)
    return found


def _effect(server: NamesrvClient, groups: Sequence[GroupKey]) -> tuple[list[Row], list[str]]:
    """Says what it would mean at one name server to drain some groups together.

    Returns:
        A row of each group with its topics, those of applications first; and the topics of applications that would
        lose their last writable queue. Each drain alone may leave them one.
    """
    held = tables(server, GROUPS, TOPICS)
    topics: dict[GroupKey, list[str]] = {group: [] for group in groups}
    losing: list[str] = []
    for topic, route in held.routes.items():
        for group in topics.keys() & set(map(group_of, route.queue_datas)):
            topics[group].append(topic)
        keeps = lacks_writable_queue(route) or not lacks_writable_queue(route, drained=groups)
        if not keeps and is_application(topic, held.named):
            losing.append(topic)
    rows: list[Row] = [
        {**group._asdict(), "topic_count": len(names), "topics": application_first(names, held.named)}
        for group, names in topics.items()
    ]
    return rows, sorted(losing)


# The commands.

Reason = Annotated[
    str, typer.Option("--reason", help="Reason for the journal. If omitted, the earlier reason is kept.")
]
Force = Annotated[bool, typer.Option("--force", help="Continue although producers lose topics (TOPICS_IN_USE).")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what it would do.")]
Cluster = Annotated[str | None, typer.Option(help="Cluster, where two have a group of that name.")]

TOPICS_IN_USE, TOPIC_NOT_FOUND = "TOPICS_IN_USE", "TOPIC_NOT_FOUND"
"""Reasons of a name server that does not take topics from their producers, and of one that has no such topic."""

INTENT = (
    "kind",
    "cluster=cluster_name",
    "broker=broker_name",
    "topic",
    "since",
    "until=ends_at",
    "caller",
    "reason=comment",
    "awaits_registration",
)
SHOWN_TOPICS = 10
"""Topics of a group that a table names."""


def drain(
    session: Session,
    broker: Brokers,
    *,
    cluster: Cluster = None,
    reason: Reason = "",
    duration: For = None,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Takes write permission from broker groups until they are restored (mqadmin wipeWritePerm)."""
    named, ends_at_millis = groups_named(broker, cluster), millis_from_now(duration)
    groups = groups_of(session, named, lambda server: tables(server, GROUPS).groups, "broker group")
    if isinstance(named, GroupPattern):
        effects = session.each(partial(_effect, groups=groups))
        losing = {endpoint: topics for endpoint, (_, topics) in effects.items() if topics}
        needs_force = bool(losing) and not force
        if dry_run:
            _show_effects(session, effects, "would need --force" if needs_force else "would be done")
        for endpoint, topics in losing.items():
            lose = f"{counted(len(topics), 'topic')} would lose the last writable queue: {_some(topics)}"
            session.note(f"{endpoint}: {'' if force else f'{TOPICS_IN_USE}: '}{lose}")
        if dry_run:
            return
        if needs_force:
            raise Ended("nothing has changed; repeat with --force if that is meant", REFUSED)
    requests = [
        pb.WipeWritePermOfBrokerRequest(
            broker_name=group.broker,
            cluster_name=group.cluster or None,
            comment=reason,
            validate_only=dry_run,
            ends_at_millis=ends_at_millis,
            force=force,
        )
        for group in groups
    ]
    on_all(session, requests, "topics=wipe_topic_count")


def undrain(
    session: Session, broker: Brokers, cluster: Cluster = None, reason: Reason = "", dry_run: DryRun = False
) -> None:
    """Gives write permission back to broker groups (mqadmin addWritePerm); by a pattern, to those that are drained."""
    named = groups_named(broker, cluster)
    # A drained group need not be registered.
    groups = groups_of(session, named, lambda server: drains(all_intents(server)), "drained broker group")
    if dry_run and isinstance(named, GroupPattern):
        _show_effects(session, session.each(partial(_effect, groups=groups)), "would be done")
        return
    requests = [
        pb.AddWritePermOfBrokerRequest(
            broker_name=group.broker, cluster_name=group.cluster or None, comment=reason, validate_only=dry_run
        )
        for group in groups
    ]
    on_all(session, requests, "topics=add_topic_count")


def delete_topic(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    *,
    cluster: Annotated[str | None, typer.Option(help="Only in this cluster.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Hold the topic: registrations do not restore it.")] = False,
    duration: For = None,
    reason: Reason = "",
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Removes a topic's routes (mqadmin deleteTopic, the name server's part). With --for it is held for that time."""
    request = pb.DeleteTopicRequest(
        topic=topic,
        cluster_name=cluster,
        hold=hold or duration is not None,
        comment=reason,
        validate_only=dry_run,
        ends_at_millis=millis_from_now(duration),
        force=force,
    )
    on_all(session, [request], "groups=removed_queue_data_count", "vanishing=blast_radius.topics_vanishing")


def unhold_topic(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    cluster: Annotated[str | None, typer.Option(help="Cluster of the hold, if it names one.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Lifts the hold of a topic that was deleted with --hold."""
    request = pb.ReleaseTopicHoldRequest(topic=topic, cluster_name=cluster, validate_only=dry_run)
    on_all(session, [request], "groups=restored_queue_data_count")


def guard_drop(
    session: Session,
    broker: Annotated[str | None, typer.Argument(help="Only this group. By default all that the guard keeps.")] = None,
    cluster: Cluster = None,
    reason: Reason = "",
    dry_run: DryRun = False,
) -> None:
    """Removes lost brokers that the mass-loss guard keeps in the routes."""
    request = pb.ConfirmBrokerLossRequest(
        broker_name=broker, cluster_name=cluster, comment=reason, validate_only=dry_run
    )
    on_all(session, [request], "brokers=removed_broker_count")


def intents(session: Session) -> None:
    """Lists the drains and holds in force, at each name server."""
    rows = session.rows(all_intents)
    session.show(rows if session.form == "json" else list(map(in_words, rows)), ("endpoint", *INTENT))


def note_in_use(session: Session, results: Sequence[str]) -> None:
    """Says how to continue where a name server refused to take topics from their producers."""
    if any(TOPICS_IN_USE in result for result in results):
        session.note("nothing has changed where it was refused; repeat with --force if that is meant")


def result_of(session: Session, request: Any, answer: Any) -> str:
    """What became of a change, or would become of it. Reports a name server that did not make it."""
    if isinstance(answer, CallError):
        if answer.reason == TOPIC_NOT_FOUND:
            return "not there"  # the wanted state, as RocketMQ's answer says
        session.failed(answer)
        return f"failed: {answer.reason}"
    if not request.validate_only:
        return "done"
    if "in_use" in answer.DESCRIPTOR.fields_by_name and answer.HasField("in_use") and not request.force:
        return "would need --force"
    return "would be done"


def awaited(request: Any, answer: Any) -> str:
    """Names the subject of an intent that takes effect only with a later registration; otherwise empty."""
    # A name server that does not say it refuses what is not registered.
    told = {} if isinstance(answer, CallError) else {field.name: value for field, value in answer.ListFields()}
    where = f" of cluster {request.cluster_name}" if getattr(request, "cluster_name", "") else ""
    if told.get("group_registered") is False:
        return f"broker group {request.broker_name}{where}"
    return f"topic {request.topic}{where}" if told.get("topic_reported") is False else ""


def made(server: NamesrvClient, requests: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Makes the calls of operators that requests are for. Returns each with its answer, or with its CallError.

    One that is refused does not keep the others from being made. A name server that does not answer is not asked on,
    which would take a time-out each.
    """
    done: list[tuple[Any, Any]] = []
    for request in requests:
        try:
            done.append((request, getattr(server.admin, call_of(request))(request)))
        except CallError as error:
            done.append((request, error))
            if error.unreachable and not error.error.reason:
                break
    return done


def call_of(request: Any) -> str:
    """The name of the call that a request is for."""
    return str(request.DESCRIPTOR.name.removesuffix("Request"))


def on_all(session: Session, requests: Sequence[Any], *counts: str) -> None:
    """Makes changes at all name servers, each about one group or one thing, and shows the result at each."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for endpoint, done in session.each(partial(made, requests=requests)).items():
        for request, answer in done:
            shown: dict[str, Any] = {"endpoint": endpoint}
            if len(requests) > 1:
                shown |= {"cluster": request.cluster_name, "broker": request.broker_name}
            shown["result"] = result_of(session, request, answer)
            rows.append(shown | ({} if isinstance(answer, CallError) else row(answer)))
            if subject := awaited(request, answer):
                text = f"nobody has registered {subject} here; the change takes effect when somebody does"
                notes.append(f"{endpoint}: warning: {text}")
    columns = ("endpoint", *(("cluster", "broker") if len(requests) > 1 else ()), "result", *counts)
    if any("blast_radius" in one for one in rows):
        columns = (*columns, "losing_last_writable_queue=blast_radius.topics_losing_last_writable_queue", "such_as")
        for one in rows:
            topics = one.get("blast_radius", {}).get("sample_topics", ())
            broker = one.get("broker", getattr(requests[0], "broker_name", ""))
            one["such_as"] = _some(topics, one.get("cluster", ""), broker)
    session.show(rows, columns)
    for note in notes:
        session.note(note)
    note_in_use(session, [str(one["result"]) for one in rows])


def _show_effects(session: Session, effects: Mapping[str, tuple[list[Row], list[str]]], result: str) -> None:
    """Shows the groups that a pattern matches, with their topics at each name server."""
    rows = [{"endpoint": at, **one, "result": result} for at, (found, _) in effects.items() for one in found]
    if session.form == "table":
        rows = [{**one, "topics": _some(one["topics"], one["cluster"], one["broker"])} for one in rows]
    session.show(rows, ("endpoint", "cluster", "broker", "result", "topic_count", "topics"))


def _some(topics: Sequence[str], *named_after: str) -> str:
    """The first few topics of applications, and how many others there are.

    A request may leave the cluster out, but a cluster's topic comes with its topic of replies.
    """
    clusters = (topic.removesuffix(REPLY_SUFFIX) for topic in topics if topic.endswith(REPLY_SUFFIX))
    names = {*named_after, *clusters}
    own = [topic for topic in topics if is_application(topic, names)]
    others = f"{len(topics) - len(own)} of brokers and consumer groups" if len(topics) > len(own) else ""
    return ", ".join(filter(None, [first_few(own, SHOWN_TOPICS), others]))
