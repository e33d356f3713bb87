"""The reference model's losses: who is removed, and who stays because too many vanish at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from namesrv.core.model import LiveKey
from tests.unit.namesrv.reference_model import Lost, ReferenceModel


def overdue(model: ReferenceModel, now: float) -> list[LiveKey]:
    return [key for key, broker in model.brokers.items() if broker.due < now]


def bound_to(model: ReferenceModel, channels: Iterable[str]) -> list[LiveKey]:
    wanted = set(channels)
    return [key for key, broker in model.brokers.items() if broker.channel in wanted]


def lose(model: ReferenceModel, keys: Iterable[LiveKey], now: float) -> None:
    """Brokers vanish: they are removed, or those that are confirmed are held if they are too many."""
    losing = [key for key in keys if not model.brokers[key].unconfirmed]
    if losing and _trips(model, losing, now):
        _hold(model, losing, now)
    else:
        _remove_lost(model, keys, now)


def remove_the_rest(model: ReferenceModel, keys: Iterable[LiveKey]) -> None:
    """Of brokers that vanish, those go that were not held this time: their time as unconfirmed ones is up."""
    for key in keys:
        if key in model.brokers:
            model.remove(key)


def forget_topic(model: ReferenceModel, topic: str, cluster_name: str | None) -> None:
    """A topic that was deleted does not come back with brokers that were lost before."""
    for lost in model.recent.values():
        if cluster_name in (None, lost.broker.group.cluster_name):
            lost.queues.pop(topic, None)


def _trips(model: ReferenceModel, losing: list[LiveKey], now: float) -> bool:
    behaviour = model.behaviour
    model.recent = {
        key: lost for key, lost in model.recent.items() if lost.at + behaviour.mass_loss_window_seconds >= now
    }
    model.held = {key: at for key, at in model.held.items() if at + behaviour.mass_loss_window_seconds >= now}
    recent = len(model.recent) + len(model.held)
    lost = len(losing) + recent
    before = len(model.brokers) - len(model.unconfirmed()) + recent
    part = behaviour.mass_loss_percent / 100
    return lost >= behaviour.mass_loss_min_brokers and lost / before > part


def _remove_lost(model: ReferenceModel, keys: Iterable[LiveKey], now: float) -> None:
    before = replace(model, brokers=dict(model.brokers), facts=dict(model.facts), filters=dict(model.filters))
    for key in keys:
        model.remove(key)
    for key in keys:
        broker = before.brokers[key]
        if broker.unconfirmed:
            continue
        queues = {}
        if broker.group not in model.facts:
            queues = {topic: numbers for (topic, group), numbers in before.queues.items() if group == broker.group}
        model.recent[key] = Lost(now, broker, before.facts[broker.group], queues, before.filters.get(key))


def _hold(model: ReferenceModel, losing: list[LiveKey], now: float) -> None:
    model.held.update(dict.fromkeys(losing, now))
    model.held.update({key: lost.at for key, lost in model.recent.items()})
    held_until = now + model.behaviour.mass_loss_hold_seconds
    reported = set(model.queues)
    for key, lost in model.recent.items():
        broker = lost.broker
        if key in model.brokers or broker.broker_id in model.group_addrs().get(broker.group, {}):
            continue
        model.brokers[key] = replace(broker, increment_first=False)
        model.facts.setdefault(broker.group, lost.facts)
        if lost.filters:
            model.filters[key] = lost.filters
        for topic, numbers in lost.queues.items():
            if (topic, broker.group) not in reported:
                model.queues[topic, broker.group] = numbers
        losing = [*losing, key]
    for key in losing:
        broker = model.brokers[key]
        broker.unconfirmed, broker.channel, broker.due, broker.doubted = True, None, held_until, False
    model.recent.clear()
