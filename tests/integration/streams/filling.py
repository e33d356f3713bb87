"""Tables whose snapshot is more than any buffer on the way to a reader holds."""

from __future__ import annotations

from tests.support.programs.processes import Client
from tests.support.registrations import identity, registration

TOPICS_PER_BROKER = 20_000
BROKERS = 8


def fill(client: Client) -> None:
    """Makes a snapshot of about 10 MB: more than any buffer on the way to a reader holds."""
    for number in range(BROKERS):
        broker = identity(f"127.0.0.1:{11_000 + number}", name=f"broker-{number}")
        topics = [f"broker-{number}-topic-{index}" for index in range(TOPICS_PER_BROKER)]
        client.registration.RegisterBroker(registration(topics, broker), timeout=60)
