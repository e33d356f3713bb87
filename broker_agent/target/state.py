"""The state that one name server holds of the broker, and the next call that follows from it."""

from __future__ import annotations

import threading

from broker_agent.broker.registration import Registration
from broker_agent.errors import NameServerError
from broker_agent.timing.clock import Timing

FIRST_REFUSED_SECONDS, LONGEST_REFUSED_SECONDS = 60.0, 3_600.0
"""How long a table that a name server refused for good is not sent to it again while neither table nor channel changes;
doubled each time. Otherwise all parts of a table that is too large would be sent at every period.
"""
_REFUSED_FOR_GOOD = frozenset({"INVALID_FIELD", "LIMIT_EXCEEDED"})


class TargetState:
    """Changes with each answer and with the channel. All methods may be called from any thread."""

    def __init__(self, changed: threading.Condition, timing: Timing) -> None:
        """Starts without knowing anything.

        Args:
            changed: Guards this, together with the channel's id.
            timing: Clock.
        """
        self._changed = changed
        self._timing = timing
        self._wanted = True
        self._claim = True
        self._id_doubtful = True
        self._answer_wanted = False
        self._held: Registration | None = None
        self._generation: int | None = None
        self._refused: Registration | None = None
        self._refused_until = 0.0
        self._refused_seconds = FIRST_REFUSED_SECONDS

    @property
    def registration_wanted(self) -> bool:
        """Whether the name server lacks the registration as far as the agent knows, so that asking it is needless."""
        with self._changed:
            return self._wanted

    @property
    def answer_wanted(self) -> bool:
        """Whether the answer to a registration has news, so that asking for the version is not enough."""
        with self._changed:
            return self._answer_wanted

    @property
    def claims_id(self) -> bool:
        """Whether the next registration takes the broker id also from another address that holds it."""
        with self._changed:
            return self._claim

    @property
    def id_doubtful(self) -> bool:
        """Whether another address may hold the broker's id: nothing was ever registered, or it is gone again."""
        with self._changed:
            return self._id_doubtful

    @property
    def held(self) -> Registration | None:
        """The registration that the name server holds; None if it holds none, or that is not known."""
        with self._changed:
            return self._held

    @property
    def generation(self) -> int | None:
        """The name server's number for the last registration that it accepted; None if it never did."""
        with self._changed:
            return self._generation

    def refuses(self, registration: Registration) -> bool:
        """Whether the name server has refused exactly this for good, a short while ago."""
        with self._changed:
            return registration.same_as(self._refused) and self._timing.clock() < self._refused_until

    def claim_id(self) -> None:
        """Makes the next registration take the broker id from another holder, because the broker has a new role."""
        with self._changed:
            self._claim = True

    def want_full(self) -> None:
        """The name server asks for the whole table."""
        with self._changed:
            self._wanted = True

    def want_answer(self) -> None:
        """The name server has news that an answer to a registration brings."""
        with self._changed:
            self._answer_wanted = True

    def channel_opened(self) -> None:
        """Nothing is registered over a new channel."""
        with self._changed:
            self._held, self._wanted, self._claim = None, True, True

    def channel_ended(self) -> None:
        """The channel has ended, and with it the registration over it."""
        with self._changed:
            self._held, self._wanted, self._refused = None, True, None

    def registering(self) -> None:
        """A registration is about to be sent."""
        with self._changed:
            self._wanted = False

    def accepted(self, registration: Registration, generation: int, *, channel_is_open: bool) -> None:
        """The name server accepted a registration; if its channel has ended since, it has removed the broker again."""
        with self._changed:
            self._generation = generation
            self._answer_wanted = self._claim = self._id_doubtful = False
            self._held = registration if channel_is_open else None

    def failed(self, registration: Registration, error: NameServerError) -> None:
        """A registration failed.

        It is not known whether the name server accepted it, so it counts as holding nothing.
        """
        reason = error.rich.reason
        with self._changed:
            self._held, self._wanted = None, True
            self._id_doubtful = self._id_doubtful or reason == "NEED_FULL_REGISTRATION"
            if reason in _REFUSED_FOR_GOOD:
                again = registration.same_as(self._refused)
                seconds = min(2 * self._refused_seconds, LONGEST_REFUSED_SECONDS) if again else FIRST_REFUSED_SECONDS
                self._refused, self._refused_seconds = registration, seconds
                self._refused_until = self._timing.clock() + seconds

    def lost(self) -> bool:
        """The name server does not know the broker. Returns whether that is news."""
        with self._changed:
            lost, self._held, self._id_doubtful = self._held is not None, None, True
            return lost

    def unregistering(self) -> int | None:
        """The agent itself is about to remove the registration. Returns its generation."""
        with self._changed:
            self._held, self._wanted = None, True
            return self._generation
