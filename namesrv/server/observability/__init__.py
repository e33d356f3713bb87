"""Metrics, traces and readiness of a name server, for its operators.

Begin reading in ``exports``.
"""
