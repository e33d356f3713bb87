"""Settings of a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from namesrv_common.client.channels import ClientFiles

DEFAULT_TOPIC = "TBW102"
"""The topic whose brokers take messages of topics that do not exist yet (RocketMQ: AUTO_CREATE_TOPIC_KEY_TOPIC)."""


MAX_WATCH_TOPICS = 10_000
"""Most topics of one watch, by the contract."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client behaves. Times are in seconds."""

    poll_seconds: float = 30.0
    """Between two polls of a name server that has no watch for this client, 10 % more or less (RocketMQ:
    pollNameServerInterval)."""
    timeout_seconds: float = 3.0
    """For each name server asked (RocketMQ: mqClientApiTimeout)."""
    hold_seconds: float = 120.0
    """How long a loss of all brokers without a reason is held back. 0: not at all. By default as long as a name server
    itself keeps silent brokers."""
    cache_dir: Path | None = None
    """Folder of the disk cache; None for none."""
    fleet: str = ""
    """Tells environments apart whose clients share a cache folder."""
    zone_name: str | None = None
    """Zone whose brokers are preferred; None for no preference."""
    prefer_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the brokers that producers prefer; empty for no preference."""
    default_topic: str = DEFAULT_TOPIC
    """The topic whose brokers take messages of topics that do not exist yet; empty for none."""
    send_latency_fault_enable: bool = False
    """Whether brokers that were slow or failed are avoided (RocketMQ: sendLatencyFaultEnable)."""
    max_topics: int = MAX_WATCH_TOPICS
    """Topics that are kept at most, up to 10,000, the most of one watch: a slip in a program must not make the client
    watch ever more names."""
    tls: ClientFiles | None = None
    """Certificates and a token for the name servers, as files that are read again when they change; None for no TLS."""

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One of them is out of its range; the text names it.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            may_be_zero = each.name == "hold_seconds"
            if each.type in {"float", "int"} and not (value > 0 or (may_be_zero and value == 0)):
                raise ValueError(f"{each.name} is {value}, not {'0 or more' if may_be_zero else 'above 0'}")
        if self.max_topics > MAX_WATCH_TOPICS:
            raise ValueError(f"max_topics is {self.max_topics}, over {MAX_WATCH_TOPICS}, the most topics of a watch")
