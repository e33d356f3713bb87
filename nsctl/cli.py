"""The program ``nsctl``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from namesrv_common.process.command_line import version_option
from nsctl.commands import agents, backup, change, history, show
from nsctl.commands.brokers import broker, brokers
from nsctl.commands.compare import compare_rocketmq, diff
from nsctl.commands.doctor import doctor
from nsctl.commands.drained import drained
from nsctl.console.command import console
from nsctl.session import PROGRAM, Agent, Agents, Called, Context, Namesrv, add_command

app = typer.Typer(
    help="Shows, explains and changes what name servers hold.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
kv = typer.Typer(help="The KV configuration.", no_args_is_help=True)
config = typer.Typer(help="Settings of the name servers.", no_args_is_help=True)
guard = typer.Typer(help="The mass-loss guard.", no_args_is_help=True)
backup_app = typer.Typer(help="Backup of intents, KV configuration and settings in a file.", no_args_is_help=True)

agent_app = typer.Typer(help="Agents of brokers.", no_args_is_help=True)


def main() -> None:
    """Runs the command line."""
    app(prog_name=PROGRAM)


@app.callback()
def _program(
    program: typer.Context,
    *,
    namesrv: Namesrv = None,
    context: Context = None,
    version: Annotated[bool, version_option(PROGRAM)] = False,  # noqa: ARG001 - printed while it is parsed
) -> None:
    program.obj = Called(namesrv, context)


_SHOWS: dict[str, Callable[..., None]] = {
    "status": show.status,
    "cluster": show.cluster,
    "brokers": brokers,
    "broker": broker,
    "topics": show.topics,
    "route": show.route,
    "watchers": show.watchers,
    "explain": history.explain,
    "history": history.history,
    "diff": diff,
    "doctor": doctor,
    "compare-rocketmq": compare_rocketmq,
    "intents": change.intents,
}
_ACTS: dict[str, Callable[..., None]] = {
    "drain": change.drain,
    "drained": drained,  # continues by itself, with --wait
    "restore": change.restore,
    "delete-topic": change.delete_topic,
    "release-topic": change.release_topic,
    "watch": show.watch,  # repeats by itself
    "console": console,
}
for _name, _command in _SHOWS.items():
    add_command(app, _name, _command)
for _name, _command in _ACTS.items():
    add_command(app, _name, _command, acts=True)
add_command(kv, "list", change.kv_list)
add_command(kv, "get", change.kv_get)
add_command(kv, "export", backup.kv_export, acts=True)
add_command(kv, "put", change.kv_put, acts=True)
add_command(kv, "delete", change.kv_delete, acts=True)
add_command(config, "show", change.config_show)
add_command(config, "set", change.config_set, acts=True)
add_command(guard, "confirm-loss", change.confirm_loss, acts=True)
add_command(backup_app, "save", backup.save, acts=True)
add_command(backup_app, "restore", backup.bring_back, acts=True)
add_command(agent_app, "status", agents.status, agents=Agents)
add_command(agent_app, "events", agents.events, agents=Agents)
add_command(agent_app, "role", agents.role, acts=True, agents=Agent)
add_command(agent_app, "permission", agents.permission, acts=True, agents=Agent)
app.add_typer(agent_app, name="agent")
app.add_typer(backup_app, name="backup")
app.add_typer(kv, name="kv")
app.add_typer(config, name="config")
app.add_typer(guard, name="guard")
