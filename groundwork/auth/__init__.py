"""Callers and what they may do: permits, the file they are read from, and who a call shows itself to be.

The same for every program that has permits. Begin reading in ``permits``.
"""
