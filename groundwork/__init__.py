"""What every program of the project shares: endpoints, rich errors, settings, logs, health checks.

Nothing here knows the name server, the agent, the client or the pipeline; all of them import it. Begin reading in
``errors`` and ``grpc_handlers``, for a client in ``namesrv_client``.
"""
