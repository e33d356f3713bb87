"""Liveness of brokers and channels, and the guard that does not believe that a whole fleet died.

Imports the records. Begin reading in ``last_heard``.
"""
