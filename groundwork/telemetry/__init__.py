"""Metrics and traces of programs, and the ways to send them.

Begin reading in ``signals``.
"""
