"""Addresses of the kept routes' brokers (RocketMQ: brokerAddrTable, findBrokerAddressInPublish, ...InSubscribe)."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

from route_client.routes.route import MASTER_ID, BrokerData, GroupKey, TopicRoute


class FoundBroker(NamedTuple):
    """A broker to pull from."""

    broker_addr: str
    broker_id: int

    @property
    def slave(self) -> bool:
        """Whether it is a slave."""
        return self.broker_id != MASTER_ID


class BrokerAddrTable:
    """The groups that kept routes name, as the route that changed last has them.

    Changed on the event loop; the lookups may be called from any thread.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[GroupKey, BrokerData]] = {}
        self._routes_of: Counter[GroupKey] = Counter()

    def replace(self, old: TopicRoute | None, new: TopicRoute | None) -> None:
        """A topic's route changed. Groups that no route names any more go (RocketMQ: cleanOfflineBroker)."""
        for group in new.broker_datas if new is not None else ():
            self._routes_of[group.key] += 1
            self._groups[group.broker_name] = {**self._groups.get(group.broker_name, {}), group.key: group}
        for group in old.broker_datas if old is not None else ():
            self._routes_of[group.key] -= 1
            if not self._routes_of[group.key]:
                self._drop(group.key)

    def find_in_publish(self, broker_name: str, cluster_name: str | None = None) -> str | None:
        """Address of a group's master; None if no kept route has one."""
        groups = self._named(broker_name, cluster_name)
        return next((group.master_addr for group in groups if group.master_addr is not None), None)

    def find_in_subscribe(
        self, broker_name: str, broker_id: int, cluster_name: str | None = None, *, only_this_broker: bool = False
    ) -> FoundBroker | None:
        """A group's broker to pull from.

        The wanted one; if that is a slave and missing, the one with the next id; then any of the group, unless only the
        wanted one will do. None if no kept route has the group.
        """
        for group in self._named(broker_name, cluster_name):
            addrs = dict(group.broker_addrs)
            wanted = [broker_id] if broker_id == MASTER_ID else [broker_id, broker_id + 1]
            candidates = [*wanted, *([] if only_this_broker else addrs)]
            found = next((id_ for id_ in candidates if id_ in addrs), None)
            if found is not None:
                return FoundBroker(addrs[found], found)
        return None

    def _named(self, broker_name: str, cluster_name: str | None) -> list[BrokerData]:
        groups = self._groups.get(broker_name, {})
        return [group for key, group in groups.items() if cluster_name in {None, key.cluster_name}]

    def _drop(self, key: GroupKey) -> None:
        del self._routes_of[key]
        left = {other: group for other, group in self._groups[key.broker_name].items() if other != key}
        if left:
            self._groups[key.broker_name] = left
        else:
            del self._groups[key.broker_name]


def any_broker_of(route: TopicRoute, rng: random.Random) -> str | None:
    """A random group's master, or any of its brokers, to ask for a group's consumers. None without brokers."""
    groups = [group for group in route.broker_datas if group.broker_addrs]
    if not groups:
        return None
    group = rng.choice(groups)
    return group.master_addr or group.broker_addrs[0][1]
