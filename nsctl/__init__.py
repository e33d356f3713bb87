"""The command line for operators of a fleet: to read it, diagnose it and change it.

A plain gRPC client that keeps nothing; imports the groundwork only. Rooms, each importing only those after it: ``cli``,
``commands``, ``session`` (one run of a command), ``fleet``. Begin reading in ``cli``.
"""

import os

# gRPC's core writes lines of its own to standard error, beside ours. It reads this variable when it is imported, so it
# has to be set here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
