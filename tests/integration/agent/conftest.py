"""Fixtures of agents."""

from __future__ import annotations

from tests.support.agents import _no_thread_is_left, agent, name_server, server

__all__ = ["_no_thread_is_left", "agent", "name_server", "server"]  # pytest finds fixtures by their names
