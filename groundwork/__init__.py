"""Code that all programs share: connections, errors, settings, logs, telemetry.

Nothing here imports a program. Begin reading in ``errors`` and ``rpc_handlers``, for a client in ``namesrv_client``.
"""
