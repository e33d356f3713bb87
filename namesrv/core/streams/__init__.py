"""Streams of changes: rows, followed snapshots, and what read-only copies need beside them.

Imports routes and watches. Begin reading in ``follow``.
"""
