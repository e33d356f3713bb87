"""The agent beside a broker: keeps it registered with every name server.

Rooms, each importing only those after it: ``cli``, ``broker_controller``, ``listener`` and ``observability``,
``fan_out``, ``clients`` and ``target``, ``broker``, ``settings``, ``topics``, ``namesrv_list``, ``connections``,
``timing``. Begin reading in ``broker_controller``.
"""

import os

# gRPC's core writes lines of its own, one for each handshake that fails, past every logger and bound. It reads this
# when it is imported, so nothing that is imported later could say it.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
