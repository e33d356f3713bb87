"""Lets Spark find the format ``namesrv`` by itself.

PySpark looks through the installed top-level packages whose name begins with ``pyspark_`` for a ``DefaultSource``.
"""

from __future__ import annotations

from route_pipeline.source.data_source import NamesrvDataSource as DefaultSource
from route_pipeline.source.data_source import register

__all__ = ["DefaultSource", "register"]
