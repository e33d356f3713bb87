"""Liveness of brokers and channels, and the guard against believing that a whole fleet died.

Imports the records. Begin reading in ``last_heard``.
"""
