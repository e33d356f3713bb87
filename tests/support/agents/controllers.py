"""Controllers of an agent, whose rounds are made when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable

from broker_agent.broker_controller import BrokerController
from broker_agent.broker_probe import BrokerProbe, connects_to
from broker_agent.namesrv_list import namesrv_list_of
from broker_agent.settings import AgentSettings
from broker_agent.timing import RegistrationSchedule, Timing
from broker_agent.topics.manager import TopicConfigManager
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually

StartNameServer = Callable[..., FakeNameServer]
MakeSettings = Callable[..., AgentSettings]


class RoundsOnDemand(RegistrationSchedule):
    """Lets the test say when a periodic round is due; the rounds follow at once."""

    def __init__(self) -> None:
        super().__init__(30.0, Timing())
        self._rounds = threading.Semaphore(0)
        self._asked_for = self._begun = self._over = 0

    def due(self, rounds: int = 1) -> None:
        self._asked_for += rounds
        self._rounds.release(rounds)

    def wait_until_over(self) -> None:
        """A round that has begun has a registration of its time, however late it sends it."""
        eventually(lambda: self._over == self._asked_for)

    def next_delay(self) -> float:
        self._over = self._begun
        if not self._rounds.acquire(timeout=TIMEOUT):
            return TIMEOUT
        self._begun += 1
        return 0.0


def controller_of(settings: AgentSettings, schedule: RegistrationSchedule | None = None) -> BrokerController:
    timing = Timing()
    return BrokerController(
        settings,
        TopicConfigManager.follow(settings.topics),
        namesrv_list_of(settings.namesrv, timing=timing),
        BrokerProbe(connects_to(settings.probe_endpoint) if settings.probe_endpoint else None, timing),
        timing=timing,
        schedule=schedule,
    )


def wait_until_idle(controller: BrokerController) -> None:
    """A periodic round leaves out who is still busy, if only with finding out that nothing is left to do."""
    eventually(lambda: not any(target.in_flight for target in controller.status().targets))
