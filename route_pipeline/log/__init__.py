"""The append-only log of routes: ingested, staged, compacted, read as history.

Imports the source. Begin reading in ``route_log`` and ``ingest``. For other programs there is :func:`files`.
"""

from route_pipeline.log.route_log import files

__all__ = ["files"]
