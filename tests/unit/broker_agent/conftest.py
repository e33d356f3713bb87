"""Fixtures of agents."""

from __future__ import annotations

from tests.support.agents import _no_thread_is_left

__all__ = ["_no_thread_is_left"]  # pytest finds fixtures by their names in this module
