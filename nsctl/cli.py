"""The program ``nsctl``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from namesrv_common.process.command_line import version_option
from nsctl.commands import agents, backup, change, history, show
from nsctl.commands.compare import compare_rocketmq, diff
from nsctl.commands.doctor import doctor
from nsctl.commands.drained import drained
from nsctl.console.command import console
from nsctl.session import PROGRAM, Act, AgentAct, AgentShow, Context, Namesrv, Serve, Show

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
    program.obj = namesrv, context


_SHOWS: dict[str, Callable[..., None]] = {
    "status": show.status,
    "cluster": show.cluster,
    "brokers": show.brokers,
    "broker": show.broker,
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
}
for _name, _command in _SHOWS.items():
    app.command(_name, cls=Show)(_command)
for _name, _command in _ACTS.items():
    app.command(_name, cls=Act)(_command)
app.command("console", cls=Serve)(console)
kv.command("list", cls=Show)(change.kv_list)
kv.command("get", cls=Show)(change.kv_get)
kv.command("export", cls=Act)(backup.kv_export)
kv.command("put", cls=Act)(change.kv_put)
kv.command("delete", cls=Act)(change.kv_delete)
config.command("show", cls=Show)(change.config_show)
config.command("set", cls=Act)(change.config_set)
guard.command("confirm-loss", cls=Act)(change.confirm_loss)
backup_app.command("save", cls=Act)(backup.save)
backup_app.command("restore", cls=Act)(backup.bring_back)
agent_app.command("status", cls=AgentShow)(agents.status)
agent_app.command("events", cls=AgentShow)(agents.events)
agent_app.command("role", cls=AgentAct)(agents.role)
agent_app.command("permission", cls=AgentAct)(agents.permission)
app.add_typer(agent_app, name="agent")
app.add_typer(backup_app, name="backup")
app.add_typer(kv, name="kv")
app.add_typer(config, name="config")
app.add_typer(guard, name="guard")
