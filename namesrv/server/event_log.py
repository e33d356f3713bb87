"""Log lines about brokers, written in one place so that they look the same whatever caused them."""

from __future__ import annotations

import structlog

from namesrv.core.records import RegisterBrokerResult, Registration, RemovedBroker

_log = structlog.get_logger("namesrv.routes")


def log_registered(registration: Registration, result: RegisterBrokerResult, revision: int) -> None:
    """A registration was accepted: at level info if it changed something, else debug."""
    for gone in result.replaced:
        log_removed(gone)
    emit = _log.info if result.changed else _log.debug
    emit(
        "broker_registered",
        cluster=registration.broker.cluster_name,
        broker=registration.broker.broker_name,
        id=registration.broker_id,
        addr=registration.broker_addr,
        new=result.is_new,
        counter=registration.data_version.counter,
        generation=result.generation,
        revision=revision,
    )


def log_topic_registered(topic: str, groups: int, revision: int) -> None:
    """A topic was given to groups without a registration of theirs, and that changed something."""
    _log.info("topic_registered", topic=topic, groups=groups, revision=revision)


def log_removed(gone: RemovedBroker) -> None:
    """A broker left."""
    _log.info(
        "broker_removed",
        reason=gone.reason.name,
        cluster=gone.live.broker.cluster_name,
        broker=gone.live.broker.broker_name,
        id=gone.live.broker_id,
        addr=gone.live.broker_addr,
        generation=gone.live.generation,
        group_gone=gone.group_gone,
        topics_removed=gone.topics_removed,
    )
