"""A watch of routes in each language of docs/grpc.md."""
