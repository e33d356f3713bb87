"""The name server: the route tables of a fleet of brokers, in memory, over gRPC and RocketMQ's protocol.

Begin reading in ``server.server``, which wires all packages, then in ``core``.
"""

import os

# gRPC's core writes any number of lines about its peers to standard error, past the log, its format and its bounds. It
# reads this variable when it is imported, so it has to be set here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
