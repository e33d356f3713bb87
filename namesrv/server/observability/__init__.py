"""Metrics, traces and readiness of a name server, for those who look after it.

Begin reading in ``exports``.
"""
