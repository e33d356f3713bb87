"""The command line for operators of a fleet, and its web page, ``console``.

A plain gRPC client that keeps nothing; imports only namesrv_common. Begin reading in ``cli``, then ``session``, one run
of a command.
"""

import os

# gRPC's core writes lines of its own to standard error. It reads this variable when it is imported, so it
# has to be set here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
