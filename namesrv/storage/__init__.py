"""Files in the data directory: each is written whole or not at all, has a copy, and is checked when it is read.

Knows no gRPC and no event loop; ``namesrv.server.stores`` decides when they are written. Begin reading in
``data_dir`` and ``durable_file``.
"""
