"""Files of the data directory: each is written whole or not at all, has a backup, and is checked when it is read.

The stores of ``namesrv.app`` decide when a file is written. Begin reading in ``data_dir`` and ``durable_file``.
"""
