"""The console: a web page that shows what the name servers hold, and where they differ. It changes nothing.

Starlette and Jinja behind uvicorn, which need the extra ``console``: they are imported only for this command. Begin
reading in ``app``.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from namesrv_common.printable import how_to_install
from nsctl.contexts import address
from nsctl.session import USAGE, Session

Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on. Port 0 takes any free port.")]
BehindProxy = Annotated[
    bool, typer.Option("--behind-proxy", help="Allow other addresses than loopback: a proxy authenticates readers.")
]


def console(session: Session, *, listen: Listen = "127.0.0.1:9880", behind_proxy: BehindProxy = False) -> None:
    """Serves a web page that shows what name servers hold, until interrupted."""
    endpoint = address(listen, allow_port_zero=True)
    if not (endpoint.is_loopback or behind_proxy):
        raise typer.BadParameter(
            f"{listen} is beyond loopback: that needs --behind-proxy and a proxy that authenticates"
        )
    try:
        from nsctl.console.app import serve  # noqa: PLC0415 - only here, as its libraries may be missing

        asyncio.run(serve(session, endpoint, behind_proxy=behind_proxy))
    except ModuleNotFoundError as error:
        session.note(f"the console needs {error.name}; {how_to_install('console')}", USAGE)
    except OSError as error:
        session.note(str(error), USAGE)
