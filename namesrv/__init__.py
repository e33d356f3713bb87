"""The name server: the route tables of a fleet of brokers, in memory, over gRPC.

Rooms, each importing only those after it: ``cli``, ``process`` (event loops and workers), ``server`` (gRPC),
``storage`` (files), ``config`` (settings and limits), ``core`` (the tables, pure). Begin reading in ``core.routes``.
"""

import os

# gRPC's core writes lines of its own, one for each handshake that fails, past every logger and bound. It reads this
# when it is imported, so nothing that is imported later could say it.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
