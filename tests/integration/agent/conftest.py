"""Fixtures of agents."""

from __future__ import annotations

from tests.support.agents.fixtures import _no_thread_is_left, name_server, settings
from tests.support.agents.running_agent import agent

__all__ = ["_no_thread_is_left", "agent", "name_server", "settings"]  # pytest finds fixtures by their names here
