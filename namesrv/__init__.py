"""The name server: who is where, in memory, over gRPC."""

import os

# gRPC's core writes lines of its own, one for each handshake that fails, past every logger and bound. It reads this
# when it is imported, so nothing that is imported later could say it.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
