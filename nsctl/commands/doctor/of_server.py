"""What one name server tells of itself: its status, its clock, the decisions of operators that are in force."""

from __future__ import annotations

from collections.abc import Iterator

from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.namesrv_client import NamesrvClient
from groundwork.printable import counted
from nsctl.clocks import Clock
from nsctl.commands.doctor.findings import Code, Finding
from nsctl.commands.write import all_intents
from nsctl.output import iso

SKEW_SECONDS = 1.0
"""A clock this far from ours is told, beyond the time that the call took."""
LAG_MILLIS = 1_000.0
"""An event loop that was held up for so long is told, as by the alert: calls waited for it, and deadlines are near."""
FORGOTTEN_MILLIS = 86_400_000
"""A decision without an end that is in force for so long may have been forgotten, as the alert says."""
SHOWN_DECISIONS = 20
"""Decisions of a name server that are told one by one."""


def of_status(where: str, status: pb.GetNamesrvStatusResponse) -> Iterator[Finding]:
    """What a name server says of itself."""
    if not status.warm:
        what = "is warming: unknown topics are UNAVAILABLE there"
        yield Finding(Code.WARMING, where, what, "wait until its brokers are back")
    if status.guard_tripped:
        count = status.guarded_broker_count or status.unconfirmed_broker_count  # an older name server says the second
        until = f" until {iso(status.guard_ends_at_millis)}" if status.HasField("guard_ends_at_millis") else ""
        held = f"the mass-loss guard holds {counted(count, 'broker')} that vanished together{until}"
        do = "look at the network; `nsctl guard confirm-loss` if they are gone"
        yield Finding(Code.GUARD_HOLDS_BROKERS, where, held, do)
    elif status.unconfirmed_broker_count:
        held = counted(status.unconfirmed_broker_count, "broker")
        known = f"{held} known from its snapshot file only"
        yield Finding(Code.BROKERS_UNCONFIRMED, where, known, "wait for them, or see why their agents do not register")
    if status.HasField("replica") and not status.replica.leader_connected:
        lost = f"is a copy of {status.replica.leader}, which it has lost: {status.replica.problem}"
        do = "see whether that name server runs and can be reached from there"
        yield Finding(Code.LEADER_LOST, where, lost, do)
    if status.loop_lag_millis > LAG_MILLIS:
        lag = f"calls waited up to {status.loop_lag_millis / 1000:,.1f} s during the last minute: its event loop stood"
        yield Finding(Code.EVENT_LOOP_HELD_UP, where, lag, "give it more CPU, or see who calls it so much")
    if status.data_dir_problem:
        what = f"cannot write its data directory: {status.data_dir_problem}"
        do = "make room or mend the rights: it tries again by itself; until then decisions are refused"
        yield Finding(Code.DATA_DIR_NOT_WRITTEN, where, what, do)


def of_clock(where: str, clock: Clock) -> Iterator[Finding]:
    """A name server's clock that is another than ours."""
    if clock.skew > SKEW_SECONDS:
        what = f"its clock is {clock.skew:,.1f} s {'behind' if clock.theirs < clock.began else 'ahead of'} ours"
        yield Finding(Code.CLOCK_SKEW, where, what, "set the clocks: times shown and ends of decisions go by them")


def of_decisions(server: NamesrvClient, now_millis: float) -> Iterator[Finding]:
    """Decisions of operators that are in force: who, when and why."""
    shown = 0
    for intent in all_intents(server):
        shown += 1
        if shown <= SHOWN_DECISIONS:
            yield _decision(str(server.endpoint), intent, now_millis)
    if shown > SHOWN_DECISIONS:
        what = f"{shown - SHOWN_DECISIONS:,} more decisions are in force"
        yield Finding(Code.DECISION_IN_FORCE, str(server.endpoint), what, "`nsctl intents` lists all")


def _decision(where: str, intent: admin_service_pb2.Intent, now_millis: float) -> Finding:
    subject, lift = _subject(intent)
    ends = f", until {iso(intent.ends_at_millis)}" if intent.HasField("ends_at_millis") else ""
    why = f" ({intent.comment})" if intent.comment else ", no reason given"
    what = f"{subject} since {iso(intent.since_millis)} by {intent.caller or 'somebody'}{ends}{why}"
    forgotten = not ends and now_millis - intent.since_millis > FORGOTTEN_MILLIS
    return Finding(Code.DECISION_FORGOTTEN if forgotten else Code.DECISION_IN_FORCE, where, what, f"`{lift}` lifts it")


def _subject(intent: admin_service_pb2.Intent) -> tuple[str, str]:
    """What was decided, and the command that lifts it."""
    cluster = f" --cluster {intent.cluster_name}" if intent.HasField("cluster_name") else ""
    if intent.kind == admin_service_pb2.Intent.KIND_TOPIC_HOLD:
        return f"topic {intent.topic} is held back", f"nsctl release-topic {intent.topic}{cluster}"
    if intent.kind == admin_service_pb2.Intent.KIND_WIPE_WRITE_PERM:
        return f"{intent.broker_name} is drained", f"nsctl restore {intent.broker_name}{cluster}"
    drain = f"nsctl drain {intent.broker_name}{cluster}"
    return f"{intent.broker_name} may be written whatever it reports", f"{drain}, then nsctl restore"
