"""``namesrv serve --engine envoy`` that puts up with few streams that ended unread: a thousand of them are no test.

``python -m tests.integration.few_unread_streams``, with the same flags. Envoy runs ``application`` of this module.
"""

from __future__ import annotations

import typer

from groundwork.settings import add_command
from namesrv.server.envoy import app, engine
from namesrv.server.envoy.launch import become_envoy
from namesrv.settings import NamesrvSettings

FEW = 2

engine.MAX_UNREAD = FEW

application = app.application


def serve(settings: NamesrvSettings) -> None:
    """Serve routes in memory, until SIGTERM."""
    become_envoy(settings, application="tests.integration.few_unread_streams:application")


if __name__ == "__main__":
    program = typer.Typer()
    add_command(program, "serve", NamesrvSettings, serve)
    program()
