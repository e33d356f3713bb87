"""The way of a call from an asyncio gRPC server to its servicer, the same for every program and engine.

Imports only the groundwork; name server and agent construct it with what differs between them. Begin reading in
``handlers``.
"""
