"""What Spark's first Python processes import: each read of a session whose workers have ended waits for them."""

from __future__ import annotations

import subprocess
import sys

FIND_AND_MAKE = """
import sys
import pyspark_namesrv

source = pyspark_namesrv.DefaultSource({"endpoints": "127.0.0.1:9876", "table": "TABLE"})
assert "NOT NULL" in source.schema()
print([name for name in ("grpc", "google.protobuf", "pyarrow", "numpy") if name in sys.modules])
"""


def test_to_find_the_format_and_to_make_a_source_of_it_needs_neither_arrow_nor_grpc() -> None:
    for table in ("topic_queues", "changes"):
        done = subprocess.run(
            [sys.executable, "-c", FIND_AND_MAKE.replace("TABLE", table)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("[]\n", "")
