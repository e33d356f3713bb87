"""What every program of the project shares: endpoints, rich errors, settings, logs, health checks.

Nothing here knows the name server, the agent, the client or the pipeline.
"""
