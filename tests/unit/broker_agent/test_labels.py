"""Labels of the broker: from flags, the variable and the file to each registration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_agent.registration import BrokerState, Registration
from broker_agent.settings import AgentSettings
from broker_agent.topics.table import DataVersion, TopicConfigTable

NEEDED = {"broker_name": "b", "broker_id": 0, "broker_addr": "h:1", "namesrv": ["h:2"], "topics": "topics.json"}
WRITTEN = ["row=7", "rack=r1"]


def settings(**more: Any) -> AgentSettings:
    return AgentSettings.load(None, {**NEEDED, **more})


def registered(state: BrokerState) -> tuple[bool, dict[str, str]]:
    """Whether a registration has labels, and the labels."""
    message = Registration(state, TopicConfigTable(DataVersion(1, 1), ())).full()
    return message.HasField("labels"), dict(message.labels.labels)


def test_flags_variable_and_file_give_the_same_labels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of_flags = settings(label=WRITTEN)
    monkeypatch.setenv("BROKER_AGENT_LABEL", ",".join(WRITTEN))
    of_variable = settings()
    monkeypatch.delenv("BROKER_AGENT_LABEL")
    file = tmp_path / "agent.toml"
    file.write_text(of_flags.as_toml(), encoding="utf-8")
    assert of_flags.label == of_variable.label == AgentSettings.load(file, {}).label == ["rack=r1", "row=7"]
    assert registered(BrokerState.of(of_flags)) == (True, {"rack": "r1", "row": "7"})


def test_an_agent_without_labels_says_so_and_removes_earlier_ones() -> None:
    assert registered(BrokerState.of(settings())) == (True, {})


def test_a_bad_label_stops_the_start_with_key_and_rule() -> None:
    with pytest.raises(ValueError, match=r"label\n.*has the key 'rack', whose value has 64 characters, at most 63"):
        settings(label=[f"rack={'v' * 64}"])
