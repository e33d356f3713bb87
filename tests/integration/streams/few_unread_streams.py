"""``namesrv serve --engine envoy`` that puts up with few streams that ended unread: a thousand of them are no test.

``python -m tests.integration.streams.few_unread_streams``, with the same flags. Envoy runs
this module's ``application``.
"""

from __future__ import annotations

import typer

from groundwork.settings import add_command
from namesrv.config.settings import NamesrvSettings
from namesrv.process import inside_envoy
from namesrv.server.engines.envoy import engine
from namesrv.server.engines.envoy.launch import become_envoy

FEW = 2

engine.MAX_UNREAD = FEW

application = inside_envoy.application


def serve(settings: NamesrvSettings) -> None:
    """Serve routes in memory, until SIGTERM."""
    become_envoy(settings, application="tests.integration.streams.few_unread_streams:application")


if __name__ == "__main__":
    program = typer.Typer()
    add_command(program, "serve", NamesrvSettings, serve)
    program()
