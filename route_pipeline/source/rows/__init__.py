"""Rows of the pipeline's tables, as Arrow record batches, of what a name server sends.

Imports ``source.name_server`` and the schemas, and nothing of Spark; the readers and the log import it. Begin reading
in ``tables``.
"""
