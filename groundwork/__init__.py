"""The ground that every program of the project stands on: endpoints, rich errors, settings, logs, health checks.

Nothing here knows the name server, the agent, the client or the pipeline.
"""
