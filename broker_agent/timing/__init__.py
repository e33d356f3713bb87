"""Clocks, periods and pauses, injected so that tests run on virtual time.

Imports nothing of the agent. Begin reading in ``clock``.
"""
