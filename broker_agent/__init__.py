"""The agent next to a broker: keeps it registered with every name server.

Begin reading in ``broker_controller``, then ``broker_outer_api`` and ``name_server``.
"""

import os

# gRPC's core writes any number of lines about its peers to standard error, past the log, its format and its bounds. It
# reads this variable when it is imported, so it has to be set here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
