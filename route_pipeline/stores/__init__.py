"""Stores that a log can lie on: a file system of this machine, or an object store by its URL.

Knows nothing of logs. Begin reading in ``store``.
"""
