"""The settings and the clock that the core uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

# Switches of RocketMQ that operators set differently, the guard's numbers, and times that brokers are given.


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Replaced as a whole when an operator changes a part of it. Names are RocketMQ's (NamesrvConfig) in snake case.

    The defaults are RocketMQ 4's behaviour. Additions of version 5 are off, or on where readers see nothing new.
    """

    support_acting_master: bool = False
    """Whether a slave stands in for a lost master of a group that enables it. Fixed at the start."""
    delete_topic_with_broker_registration: bool = False
    """Whether a full registration removes the group's topics that are not in it."""
    notify_min_broker_id_changed: bool = False
    """Whether channels are told when the lowest broker id of a group changes."""
    order_message_enable: bool = False
    """Whether routes carry the ordered-topic configuration."""
    return_order_topic_config_to_broker: bool = True
    """Whether answers to registrations carry it."""
    mass_loss_percent: int = 50
    """The guard trips when more than this part of a principal's brokers is lost within the window, in percent."""
    mass_loss_min_brokers: int = 5
    """The guard does not trip below this many lost brokers: one machine may hold two groups of a master and a slave."""
    mass_loss_window_seconds: float = 30.0
    """Losses within this time count together: longer than a network takes to show all of its losses."""
    mass_loss_hold_seconds: float = 600.0
    """How long the guard keeps a lost broker in the routes: enough to look at the fleet and to confirm the loss."""
    channel_grace_seconds: float = 30.0
    """How long brokers stay after the end of a channel that was handed over."""


# Time as the core sees it: injected, so that tests run on a virtual clock.


class Clock(Protocol):
    """Two clocks in one. Deadlines go by ``monotonic``; ``wall_millis`` is only reported."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary point; never goes back."""

    def wall_millis(self) -> int:
        """Milliseconds since the Unix epoch."""
