"""Metrics and traces of programs, and where they are sent.

Begin reading in ``signals``.
"""
