"""Route snapshots and changes into Spark, and a log of them.

Begin reading in ``data_source`` and ``spark_readers``, the format ``namesrv``; then in ``ingest``.

In a notebook or a script, begin with ``spark = route_pipeline.spark_session()``.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from route_pipeline.session import spark_session

__all__ = ["spark_session"]

# gRPC's core writes lines of its own to standard error, next to the program's one line of error. It
# reads this variable when it is imported, in Spark's workers as well.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def __getattr__(name: str) -> Any:
    """Finds ``spark_session``, which needs Spark: tasks and ``route-pipeline --version`` do not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("route_pipeline.session"), name)
