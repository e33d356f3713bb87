"""The name server around the core: gRPC, and all that runs beside it in one event loop.

Rooms, each importing only those after it: ``server`` and ``replica`` (the assembled servers), ``observability``,
``listener`` and ``engines``, ``services`` (the calls), ``stores`` (disk first), ``background`` (writer, scans,
streams), ``rpc``, ``auth``. Begin reading in ``server``.
"""
