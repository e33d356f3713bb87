"""The workloads by name. Run as a program it measures one in this process: Java starts once a process.

It prints samples as JSON lines; ``bench.pipeline`` calls it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

from bench.figures import Sample, own_output
from bench.pipeline.bulk import bulk_posix, bulk_s3
from bench.pipeline.logs import operations_posix, operations_s3, start
from bench.pipeline.reads import change_to_row, small_read
from bench.pipeline.sizes import Sizes

WORKLOADS: dict[str, Callable[[Sizes], Iterator[Sample]]] = {
    "bulk-posix": bulk_posix,
    "bulk-s3": bulk_s3,
    "start": start,
    "operations-posix": operations_posix,
    "operations-s3": operations_s3,
    "small-read": small_read,
    "change-to-row": change_to_row,
}


def main(name: str, sizes: str) -> None:
    """Prints the samples of a workload."""
    output = own_output()
    for sample in WORKLOADS[name](Sizes(**json.loads(sizes))):
        print(json.dumps(sample), file=output)


if __name__ == "__main__":
    main(*sys.argv[1:])
