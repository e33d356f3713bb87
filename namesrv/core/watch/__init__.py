"""Watches of topics: what each asked for, which changes concern it, and the messages to it.

Imports the routes. Begin reading in ``watch_index``.
"""
