"""The package ``pyspark_namesrv``, which lets Spark find the format ``namesrv``.

PySpark looks through the installed top-level packages whose name begins with ``pyspark_`` for a ``DefaultSource``. The
build hook copies this module to ``pyspark_namesrv/__init__.py``.
"""

from __future__ import annotations

from route_pipeline.data_source import NamesrvDataSource as DefaultSource
from route_pipeline.data_source import register

__all__ = ["DefaultSource", "register"]
