"""The sync of one name server with the broker: the agent sends nothing, a question, the changes, or everything."""

from __future__ import annotations

import structlog
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb

from broker_agent.broker.registration import Registration
from broker_agent.errors import NameServerError
from broker_agent.target.call_retries import CallRetries
from broker_agent.target.namesrv_target import NamesrvTarget, RegisterBrokerResult
from broker_agent.timing.clock import Timing

HOLDER_SECONDS = 1.0
"""Time to ask who holds the broker id. It is short, because the answer only warns of two agents with one id."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class RegistrationSync:
    """Brings one name server up to date, in a thread of the pool."""

    def __init__(self, timing: Timing, retries: CallRetries) -> None:
        self._timing = timing
        self._retries = retries

    def run(
        self, target: NamesrvTarget, registration: Registration, deadline: float, *, force: bool
    ) -> RegisterBrokerResult | None:
        """Registers the broker with the name server if that is needed.

        Args:
            target: The name server.
            registration: What it is to hold.
            deadline: By the injected clock.
            force: Send the whole table without asking first.

        Returns:
            The answer; None if it holds this already, refuses it, or failed.
        """
        if target.state.refuses(registration):
            return None
        try:
            return self._run(target, registration, deadline, force=force)
        except NameServerError as error:
            _log.debug("register_failed", endpoint=str(target.endpoint), error=str(error))
            return None

    def _run(
        self, target: NamesrvTarget, registration: Registration, deadline: float, *, force: bool
    ) -> RegisterBrokerResult | None:
        held = target.state.held
        if not force and not target.state.registration_wanted and held is not None:
            refresh = registration.broker.is_slave or target.state.answer_wanted
            if registration.same_as(held) and not refresh:
                if not self._need_register(target, registration, deadline):
                    return None
            elif (increment := registration.increment_from(held)) is not None:
                try:
                    return self._retries.run(
                        lambda: target.register_increment(registration, increment, deadline), deadline
                    )
                except NameServerError as error:
                    if error.rich.reason != "NEED_FULL_REGISTRATION":
                        raise
                    target.record.event(agent_pb.NamesrvEvent.KIND_NEED_FULL_REGISTRATION, error.rich.message)
        if not self._may_take_id(target, registration, deadline):
            return None
        return self._retries.run(lambda: _register_whole(target, registration, deadline), deadline)

    def _need_register(self, target: NamesrvTarget, registration: Registration, deadline: float) -> bool:
        """Whether the name server holds another version, or did not say (RocketMQ: needRegister counts that, too)."""
        now = self._timing.clock()
        try:
            # Half of the time, so that enough is left for the registration itself if the answer never comes.
            return target.need_register(registration, now + (deadline - now) / 2)
        except NameServerError as error:
            _log.debug("query_data_version_failed", endpoint=str(target.endpoint), error=str(error))
            return True

    def _may_take_id(self, target: NamesrvTarget, registration: Registration, deadline: float) -> bool:
        """Whether the broker's id is free there, or this registration shall take it from another address.

        Two agents that claim one id would otherwise take it from each other at each period, and every route would
        change as often. So an agent that starts, changes its role or opens a channel takes the id. A periodic round of
        the other agent leaves it and logs that.
        """
        claim = target.state.claims_id
        if not target.state.id_doubtful or (claim and target.state.generation is not None):
            return True
        broker = registration.broker.identity()
        now = self._timing.clock()
        try:
            holder = target.holder_of_id(broker, min(deadline, now + HOLDER_SECONDS))
        except NameServerError as error:
            _log.debug("holder_not_known", endpoint=str(target.endpoint), error=str(error))
            return True
        if holder in {None, broker.broker_addr}:
            return True
        assert holder is not None
        if claim:
            target.record.broker_id_replaced(holder)
        else:
            target.record.broker_id_taken(holder)
        return claim


def _register_whole(target: NamesrvTarget, registration: Registration, deadline: float) -> RegisterBrokerResult:
    """Sends the whole table; once more from the first part if the name server has dropped parts meanwhile."""
    try:
        return target.register(registration, deadline)
    except NameServerError as error:
        if error.rich.reason != "NEED_FULL_REGISTRATION":
            raise
    return target.register(registration, deadline)
