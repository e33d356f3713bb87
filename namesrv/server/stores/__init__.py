"""Decisions that are on disk before they are in force: settings, KV configuration, intents, and the warm start.

Imports background and ``namesrv.storage``. Begin reading in ``durable_routes``.
"""
