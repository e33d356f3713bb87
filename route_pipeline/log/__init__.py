"""The append-only log of routes: ingested, staged, compacted, read as history.

Imports the source. Begin reading in ``store`` and ``ingest``.
"""
