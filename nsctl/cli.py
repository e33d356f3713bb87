"""The program ``nsctl``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from groundwork.version import __version__
from nsctl import act, agent, see, understand
from nsctl.doctor import doctor
from nsctl.session import PROGRAM, Agent, Agents, add_command

app = typer.Typer(
    help="See, understand and change what name servers hold.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
kv = typer.Typer(help="The KV configuration.", no_args_is_help=True)
config = typer.Typer(help="Settings of the name servers.", no_args_is_help=True)
guard = typer.Typer(help="The mass-loss guard.", no_args_is_help=True)

agent_app = typer.Typer(help="The agents beside brokers.", no_args_is_help=True)


def main() -> None:
    """Runs the command line."""
    app(prog_name=PROGRAM)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


_SHOWS: dict[str, Callable[..., None]] = {
    "status": see.status,
    "cluster": see.cluster,
    "brokers": see.brokers,
    "topics": see.topics,
    "route": see.route,
    "watchers": see.watchers,
    "explain": understand.explain,
    "history": understand.history,
    "diff": understand.diff,
    "doctor": doctor,
    "intents": act.intents,
}
_ACTS: dict[str, Callable[..., None]] = {
    "drain": act.drain,
    "restore": act.restore,
    "delete-topic": act.delete_topic,
    "release-topic": act.release_topic,
    "watch": see.watch,  # goes on by itself
}
for _name, _command in _SHOWS.items():
    add_command(app, _name, _command)
for _name, _command in _ACTS.items():
    add_command(app, _name, _command, acts=True)
add_command(kv, "list", act.kv_list)
add_command(kv, "get", act.kv_get)
add_command(kv, "put", act.kv_put, acts=True)
add_command(kv, "delete", act.kv_delete, acts=True)
add_command(config, "show", act.config_show)
add_command(config, "set", act.config_set, acts=True)
add_command(guard, "confirm-loss", act.confirm_loss, acts=True)
add_command(agent_app, "status", agent.status, agents=Agents)
add_command(agent_app, "events", agent.events, agents=Agents)
add_command(agent_app, "role", agent.role, acts=True, agents=Agent)
add_command(agent_app, "permission", agent.permission, acts=True, agents=Agent)
app.add_typer(agent_app, name="agent")
app.add_typer(kv, name="kv")
app.add_typer(config, name="config")
app.add_typer(guard, name="guard")
