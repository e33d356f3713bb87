"""The rim of the name server: gRPC, engines, files of its own. Thin; what happens to routes is in the core."""
