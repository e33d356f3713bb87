"""Fixtures of agents."""

from __future__ import annotations

from tests.support.agents import _no_thread_is_left, settings

__all__ = ["_no_thread_is_left", "settings"]  # pytest finds fixtures by their names in this module
