"""Faults of every kind, injected into a running fleet, and the check of what clients observed (docs/testing.md).

Run ``python -m tests.faults``. Begin reading in ``run``.
"""
