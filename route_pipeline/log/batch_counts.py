"""Counts of a batch, taken from its files by Arrow: a few columns of them, and no Spark job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from route_pipeline.schemas import READS

_READ_COLUMNS = ["namesrv", "op", "epoch", "revision", "after_revision", "reason"]
# Names are the same in millions of rows: they stay numbers, as they are in the file.
_FORMAT = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(dictionary_columns={"namesrv"}))


@dataclass(frozen=True, slots=True)
class Brought:
    """The counts of a batch for one name server."""

    rows: int
    """Rows of the log."""
    quarantined: int
    """Rows that were put aside."""
    reads: tuple[Mapping[str, Any], ...]
    """Rows of table ``reads``: what the reader says of its reads."""


def brought(changes: Path, quarantine: Path) -> dict[str, Brought]:
    """Counts the rows of a batch by name server, in the order of their names.

    Args:
        changes: The batch's folder of rows of the log; it need not be there.
        quarantine: Its folder of rows that were put aside; neither need this.
    """
    rows, quarantined = _rows(changes), _rows(quarantine)
    reads = [read for folder in (changes, quarantine) for read in _reads(folder)]
    return {
        namesrv: Brought(
            rows[namesrv], quarantined[namesrv], tuple(read for read in reads if read["namesrv"] == namesrv)
        )
        for namesrv in sorted(rows.keys() | quarantined.keys())
    }


def _rows(folder: Path) -> Counter[str]:
    counted: Counter[str] = Counter()
    if not folder.exists():
        return counted
    for batch in ds.dataset(folder, format=_FORMAT).to_batches(columns=["namesrv"]):
        for value in batch["namesrv"].value_counts():
            counted[value["values"].as_py()] += value["counts"].as_py()
    return counted


def _reads(folder: Path) -> list[dict[str, Any]]:
    if not folder.exists():
        return []
    rows = ds.dataset(folder, format="parquet").to_table(columns=_READ_COLUMNS, filter=ds.field("table_name") == READS)
    found: list[dict[str, Any]] = rows.to_pylist()
    return found
