"""The append-only log of routes: ingested, staged, compacted, read as history.

Begin reading in ``protocol.route_log`` and ``ingest``. For other programs there is :func:`files`.
"""

from route_pipeline.log.protocol.route_log import files

__all__ = ["files"]
