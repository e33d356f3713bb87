"""How to connect to a name server: records that travel to Spark's executors.

No gRPC is imported here: to check options must not wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIN_PIN_SECONDS = 1
MAX_PIN_SECONDS = 3600
"""Longest lease of a pin that a name server gives."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a name server, in seconds."""

    connect: float = 5.0
    """For one attempt to connect; a name server is a network hop away."""
    total: float = 300.0
    """For a whole stream, with what the reader does in between; ten million rows take less than a minute."""

    @property
    def call(self) -> float:
        """For a small call: a few attempts to connect, and the pauses between them."""
        return min(self.total, 10 + 4 * self.connect)


@dataclass(frozen=True, slots=True)
class Tls:
    """How to prove the name server, and oneself to it."""

    ca: bytes | None = None
    """PEM certificates to trust; None: those of the machine."""
    certificate: bytes | None = None
    """PEM certificate chain of this client; None: it has none."""
    key: bytes | None = field(default=None, repr=False)
    """PEM private key of it."""


@dataclass(frozen=True, slots=True)
class Connecting:
    """How to connect to every name server of a read. Travels to Spark's executors, certificates and all."""

    timeouts: Timeouts = Timeouts()
    tls: Tls | None = None
    """None: plain text."""
    token: str | None = field(default=None, repr=False)
    """Sent as ``authorization: Bearer ...`` with each call; None: nothing is sent."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()
