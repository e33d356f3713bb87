"""Immutable rows: brokers, queues, intents, changes, and the bytes that they travel as.

Imports nothing but errors. Begin reading in ``rows``.
"""
