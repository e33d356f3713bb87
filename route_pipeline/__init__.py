"""Route snapshots and changes into Spark, and a log of them.

Rooms, each importing only those after it: ``commands``, ``reports``, ``log``, ``source``. Begin reading in
``source.data_source``.
"""

import os

# gRPC's core writes lines of its own to standard error, beside the program's one line of error. It
# reads this variable when it is imported, in Spark's workers as well.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
