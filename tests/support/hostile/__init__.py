"""Hostile input: texts that would do harm at a terminal or in a log, and peers of HTTP listeners.

Imports the groundwork alone. Begin reading in ``http_peers``.
"""
