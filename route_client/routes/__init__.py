"""Routes and what is made of them: caches, addresses, choice of queues.

Pure: no gRPC, threads, files or clock. Begin reading in ``route``.
"""
