"""The agent beside a broker: keeps it registered with every name server."""
