"""The native engine: gRPC over HTTP/2 in Rust (package ``namesrv_engine``), with the servicers on the event loop."""
