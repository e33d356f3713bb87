"""An ingest that kills itself at a step: ``python -m tests.faults.killed_ingest ADDRESSES LOG STEP``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from deltalake import DeltaTable

from namesrv_common.endpoints import parse_endpoints
from route_pipeline.ingest import Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from tests.support.routes.fleet_life import OPTIONS


def main(addresses: str, url: str, step: str) -> None:
    """Appends, and dies ``before the commit`` of the batch or ``after the commit``."""
    commit = DeltaTable.create_write_transaction

    def die(*arguments: Any, **named: Any) -> None:
        if step == "after the commit":
            commit(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    DeltaTable.create_write_transaction = die  # type: ignore[method-assign]
    Ingester(ingest_options(parse_endpoints(addresses), OPTIONS), RouteLog(Place(url))).once()


if __name__ == "__main__":
    main(*sys.argv[1:])
