"""gRPC without its fork handlers, which crash a child of a process that has an open client.

The handlers start gRPC's threads in the child, and these threads call into a Python that does not know them. gRPC reads
the variable below once, when it is imported. So this module imports it, before any other module of the library does.
"""

from __future__ import annotations

import importlib
import os
import sys

VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"


def _import_grpc() -> bool:
    """Imports gRPC; returns whether its fork handlers are off. A setting of the program stays."""
    if "grpc" in sys.modules or VARIABLE in os.environ:
        importlib.import_module("grpc")
        return os.environ.get(VARIABLE, "").lower() in {"0", "false", "no"}
    os.environ[VARIABLE] = "0"
    try:
        importlib.import_module("grpc")
    finally:
        del os.environ[VARIABLE]  # programs that this one starts decide for themselves
    return True


ARE_OFF = _import_grpc()
