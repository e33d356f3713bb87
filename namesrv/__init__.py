"""The name server: the route tables of a fleet of brokers, in memory, over gRPC.

Rooms, each importing only those after it: ``cli``, ``process`` (the event loop), ``server`` (gRPC),
``storage`` (files), ``config`` (settings and limits), ``core`` (the tables, pure). Begin reading in ``core.routes``.
"""

import os

# gRPC's core writes a line for each failed handshake to standard error, past our log and its bounds. It reads this
# variable when it is imported, so it has to be set here.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
