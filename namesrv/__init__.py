"""The name server: who is where, in memory, over gRPC."""
