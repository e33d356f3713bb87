"""Watches of topics: what each asked for, which changes concern it, and what it is sent.

Imports the routes. Begin reading in ``watch_index``.
"""
