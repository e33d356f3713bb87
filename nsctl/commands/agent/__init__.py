"""Commands that speak to the agents beside brokers, not to name servers.

Imported by ``cli`` alone. Begin reading in ``state``.
"""
