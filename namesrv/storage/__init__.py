"""Files in the data directory: each written whole or not at all, with its copy, and read back with every doubt checked.

Knows no gRPC and no event loop; ``namesrv.server.stores`` decides when they are written. Begin reading in
``data_dir`` and ``durable_file``.
"""
