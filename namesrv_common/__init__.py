"""Code that all programs share: connections, errors, settings, logs, telemetry.

Nothing here imports a program. Begin reading in ``errors`` and ``server.rpc_handlers``. For a client, begin in
``client.namesrv_client``.
"""
