"""The Spark data source: snapshots and changes of name servers as partitions of Arrow batches.

Rooms: ``rows`` makes the batches, ``name_server`` asks one name server. Imports only ``schemas`` and
``arrow_schemas`` of the pipeline. Begin reading in ``data_source``; ``progress`` and ``flat`` are for users' programs.
"""
