"""The program ``nsctl``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from namesrv_common.process.command_line import version_option
from nsctl.commands import brokers, change, configuration, show
from nsctl.commands.compare import compare_rocketmq, diff
from nsctl.commands.doctor import doctor
from nsctl.console import console
from nsctl.session import PROGRAM, Act, AgentAct, AgentShow, Context, Namesrv, Serve, Show

app = typer.Typer(
    help="Shows, explains and changes what name servers hold.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _program(
    program: typer.Context,
    *,
    namesrv: Namesrv = None,
    context: Context = None,
    version: Annotated[bool, version_option(PROGRAM)] = False,  # noqa: ARG001 - printed while it is parsed
) -> None:
    program.obj = namesrv, context


_COMMANDS: dict[str, tuple[type[Show], Callable[..., None]]] = {
    "status": (Show, show.status),
    "clusters": (Show, show.clusters),
    "brokers": (Show, show.brokers),
    "broker": (Show, show.broker),
    "topics": (Show, show.topics),
    "route": (Show, show.route),
    "watchers": (Show, show.watchers),
    "explain": (Show, show.explain),
    "history": (Show, show.history),
    "diff": (Show, diff),
    "doctor": (Show, doctor),
    "compare-rocketmq": (Show, compare_rocketmq),
    "intents": (Show, change.intents),
    "drain": (Act, change.drain),
    "drain-status": (Act, brokers.drain_status),  # continues by itself, with --wait
    "undrain": (Act, change.undrain),
    "delete-topic": (Act, change.delete_topic),
    "unhold-topic": (Act, change.unhold_topic),
    "watch": (Act, show.watch),  # repeats by itself
    "console": (Serve, console),
    "agent status": (AgentShow, brokers.status),
    "agent events": (AgentShow, brokers.events),
    "agent role": (AgentAct, brokers.role),
    "agent permission": (AgentAct, brokers.permission),
    "backup save": (Act, configuration.save),
    "backup restore": (Act, configuration.bring_back),
    "kv list": (Show, configuration.kv_list),
    "kv get": (Show, configuration.kv_get),
    "kv export": (Act, configuration.kv_export),
    "kv put": (Act, configuration.kv_put),
    "kv delete": (Act, configuration.kv_delete),
    "settings show": (Show, configuration.settings_show),
    "settings set": (Act, configuration.settings_set),
    "guard drop": (Act, change.guard_drop),
}
_GROUPS = {
    "agent": "Agents of brokers.",
    "backup": "Backup of intents, KV configuration and settings in a file.",
    "kv": "The KV configuration.",
    "settings": "Settings of the name servers.",
    "guard": "The mass-loss guard.",
}
_groups = {name: typer.Typer(help=meaning, no_args_is_help=True) for name, meaning in _GROUPS.items()}
for _name, _group in _groups.items():
    app.add_typer(_group, name=_name)
for _words, (_class, _command) in _COMMANDS.items():
    _of, _, _word = _words.rpartition(" ")
    (_groups[_of] if _of else app).command(_word, cls=_class)(_command)
