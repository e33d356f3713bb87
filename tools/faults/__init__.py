"""Faults of every kind, done to a running fleet, and the check of what was seen (docs/faults.md).

Run ``python -m tools.faults``. Begin reading in ``run``.
"""
