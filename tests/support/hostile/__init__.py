"""Hostile input: texts that would do harm at a terminal or in a log, frames of HTTP/2, and servers.

Imports the groundwork alone. Begin reading in ``frames``.
"""
