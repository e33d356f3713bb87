"""Callers of the agent's two listeners, and what they may have it do.

Begin reading in ``admission``.
"""
