"""Faults of every kind, injected into a running fleet, and the check of what clients observed (docs/faults.md).

Run ``python -m tests.faults``. Begin reading in ``run``.
"""
