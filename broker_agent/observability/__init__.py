"""Metrics and traces of an agent, for its operators.

Begin reading in ``exports``.
"""
