"""What survives a restart: one database, and the file of the last route snapshot.

``namesrv.app`` decides when something is written. Begin reading in ``data_dir`` and ``database``.
"""
