"""The agent beside a broker: keeps it registered with every name server.

Rooms, each importing only those after it: ``cli``, ``broker_controller``, ``listener`` and ``observability``,
``fan_out``, ``clients`` and ``target``, ``broker``, ``settings``, ``topics``, ``namesrv_list``, ``connections``,
``timing``. Begin reading in ``broker_controller``.
"""

import os

# gRPC's core writes lines about what peers do to standard error, as many as they like, past our log, its format and its
# bounds. It reads this variable when it is imported, so it has to be set here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
