"""The program ``nsctl``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from groundwork.command_line import version_option
from nsctl.commands import backup, diagnose, read, write
from nsctl.commands.agent import state as agent
from nsctl.commands.agent import topics as agent_topics
from nsctl.commands.brokers import broker, brokers
from nsctl.commands.compare import compare_rocketmq
from nsctl.commands.diff import diff
from nsctl.commands.doctor.command import doctor
from nsctl.session import PROGRAM, Agent, Agents, add_command

app = typer.Typer(
    help="See, understand and change what name servers hold.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
kv = typer.Typer(help="The KV configuration.", no_args_is_help=True)
config = typer.Typer(help="Settings of the name servers.", no_args_is_help=True)
address = typer.Typer(help="Addresses that are kept for brokers that are down.", no_args_is_help=True)
guard = typer.Typer(help="The mass-loss guard.", no_args_is_help=True)
backup_app = typer.Typer(help="What operators made of a name server, kept in a file.", no_args_is_help=True)

agent_app = typer.Typer(help="The agents beside brokers.", no_args_is_help=True)


def main() -> None:
    """Runs the command line."""
    app(prog_name=PROGRAM)


@app.callback()
def _program(*, version: Annotated[bool, version_option(PROGRAM)] = False) -> None:
    pass


_SHOWS: dict[str, Callable[..., None]] = {
    "status": read.status,
    "cluster": read.cluster,
    "brokers": brokers,
    "broker": broker,
    "topics": read.topics,
    "route": read.route,
    "watchers": read.watchers,
    "explain": diagnose.explain,
    "history": diagnose.history,
    "diff": diff,
    "doctor": doctor,
    "compare-rocketmq": compare_rocketmq,
    "intents": write.intents,
}
_ACTS: dict[str, Callable[..., None]] = {
    "drain": write.drain,
    "restore": write.restore,
    "delete-topic": write.delete_topic,
    "release-topic": write.release_topic,
    "watch": read.watch,  # goes on by itself
}
for _name, _command in _SHOWS.items():
    add_command(app, _name, _command)
for _name, _command in _ACTS.items():
    add_command(app, _name, _command, acts=True)
add_command(kv, "list", write.kv_list)
add_command(kv, "get", write.kv_get)
add_command(kv, "put", write.kv_put, acts=True)
add_command(kv, "delete", write.kv_delete, acts=True)
add_command(config, "show", write.config_show)
add_command(config, "set", write.config_set, acts=True)
add_command(address, "claims", write.address_claims)
add_command(address, "release", write.release_address, acts=True)
add_command(guard, "confirm-loss", write.confirm_loss, acts=True)
add_command(backup_app, "save", backup.save, acts=True)
add_command(backup_app, "restore", backup.bring_back, acts=True)
add_command(agent_app, "status", agent.status, agents=Agents)
add_command(agent_app, "events", agent.events, agents=Agents)
add_command(agent_app, "role", agent.role, acts=True, agents=Agent)
add_command(agent_app, "permission", agent.permission, acts=True, agents=Agent)
add_command(agent_app, "export-topics", agent_topics.export_topics, acts=True, agents=Agent)
add_command(agent_app, "import-topics", agent_topics.import_topics, acts=True, agents=Agent)
app.add_typer(agent_app, name="agent")
app.add_typer(backup_app, name="backup")
app.add_typer(kv, name="kv")
app.add_typer(config, name="config")
app.add_typer(address, name="address")
app.add_typer(guard, name="guard")
