"""Metrics and traces of an agent, for those who look after it.

Begin reading in ``exports``.
"""
