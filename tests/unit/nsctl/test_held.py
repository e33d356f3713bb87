"""What differs between what name servers hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsctl.held import Held, KvKey, Reported, SettingKey, differences, disagreements, shown_value
from tests.support.fakes.observed_name_server import BROKER, drain, live, seen


def test_what_is_not_in_all_or_not_the_same_differs_and_the_rest_does_not() -> None:
    assert differences([]) == differences([{"a": 1}]) == differences([{"a": 1}, {"a": 1}]) == []
    found = differences([{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9}, {"a": 1, "b": 2}])
    assert found == [("b", ("2", "9", "2")), ("c", ("3", "not there", "not there"))]


def test_a_name_server_that_says_nothing_is_not_compared() -> None:
    assert differences([{"a": 1}, None]) == []
    assert differences([{"a": 1}, None, {}]) == [("a", ("1", None, "not there"))]


def test_content_is_compared_whole_and_shown_in_short() -> None:
    one, other = ({BROKER: Reported(0, b"same" + end)} for end in (b"1", b"2"))
    [difference] = differences([one, other])
    assert difference.said == ("version 0, content 73616d65",) * 2


def test_long_values_are_shown_in_short_and_differ_where_only_their_ends_do() -> None:
    assert shown_value("broker-a:4") == "broker-a:4"
    one, other = shown_value("x" * 100), shown_value("x" * 99 + "y")
    assert one != other
    assert one.startswith(f"{'x' * 30}... (100 characters, SHA-256 ")


def told(**fields: object) -> Held:
    found = seen(live()).held
    assert found is not None
    return replace(found, **{"settings": {SettingKey("orderMessageEnable"): "false"}, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "kinds"),
    [
        (told(), []),
        (told(kv={KvKey("ORDER_TOPIC_CONFIG", "orders"): "broker-a:4"}), ["kv"]),
        (told(settings={SettingKey("orderMessageEnable"): "true"}), ["setting"]),
        (told(kv=None, settings=None), []),
    ],
)
def test_kv_configuration_and_settings_are_compared_where_they_may_be_read(other: Held, kinds: list[str]) -> None:
    assert list(disagreements([told(), other])) == kinds


def test_drains_that_end_at_another_time_differ() -> None:
    ending = drain()
    ending.ends_at_millis = 1_000
    one, other = (seen(live(), intents=(intent,)).held for intent in (drain(), ending))
    [difference] = disagreements([one, other])["intent"]
    assert difference.said == ("in force", "until 1970-01-01T00:00:01.000Z")
