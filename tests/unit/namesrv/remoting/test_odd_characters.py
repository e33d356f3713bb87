"""Halves of characters and bytes that are no UTF-8, in names: the request is refused, and its connection stays."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from namesrv.core.errors import Reason
from tests.support.programs.rocketmq import data_version, registration_body, topic_config
from tests.support.socketless_front import SocketlessClient, SocketlessFront
from tests.unit.namesrv.remoting.frames import binary_header, frame, json_header

MARK, HALF = "~~~", "\ud800"
"""What is replaced in whole headers, and its replacement in JSON; in bytes that is three bytes, too."""
HALF_BYTES = HALF.encode("utf-8", "surrogatepass")
ADDRESS = "127.0.0.1:10911"
BROKER = {"clusterName": "c", "brokerName": "b", "brokerAddr": ADDRESS, "brokerId": "0"}
KV = {"namespace": "n", "key": "k", "value": "v"}
BODIES = {
    103: registration_body(["T"]),
    217: json.dumps({"queueDatas": [{"brokerName": "b"}]}).encode(),
    322: json.dumps(data_version(1)).encode(),
}
NAMES = {
    100: ("namespace", "key", "value"),
    101: ("namespace", "key"),
    102: ("namespace", "key"),
    103: ("clusterName", "brokerName", "brokerAddr", "brokerId", "__ZONE_NAME"),
    104: ("clusterName", "brokerName", "brokerAddr"),
    105: ("topic",),
    205: ("brokerName",),
    216: ("topic", "clusterName"),
    217: ("topic",),
    219: ("namespace",),
    224: ("cluster",),
    322: ("clusterName", "brokerName", "brokerAddr", "brokerId"),
    327: ("brokerName",),
    901: ("clusterName", "brokerName"),
    904: ("clusterName", "brokerAddr"),
}
ODD_TOPIC = registration_body([topic_config("Good"), topic_config(MARK)])


def asked(folder: Path, frames: list[bytes]) -> list[int]:
    """Returns the answers' codes of requests on one connection, and checks that it stays open."""

    async def run() -> list[int]:
        front = SocketlessFront(folder)
        client = SocketlessClient(front)
        try:
            answers = await client.send(frames)
            assert client.is_open, front.broken_by
            reasons = [problem.reason for _, problem in front.told if problem is not None]
            assert Reason.INTERNAL_DEFECT not in reasons
            return [code_of(answer.encoding, answer.header) for answer in answers]
        finally:
            await client.close()
            await front.end()

    return asyncio.run(run())


def code_of(encoding: int, header: bytes) -> int:
    return int.from_bytes(header[:2], "big") if encoding else int(json.loads(header)["code"])


def layouts(code: int, fields: dict[str, str], body: bytes) -> list[bytes]:
    """A request whose mark has become half of a character or odd bytes, by each way to write a header."""
    escaped = {name: value.replace(MARK, HALF) for name, value in fields.items()}
    json_bytes = json_header(code, fields).replace(MARK.encode(), HALF_BYTES)
    binary_bytes = binary_header(code, fields).replace(MARK.encode(), HALF_BYTES)
    return [frame(json_header(code, escaped), body), frame(json_bytes, body), frame(binary_bytes, body, 1)]


@pytest.mark.parametrize(("code", "name"), [(code, name) for code, names in NAMES.items() for name in names])
def test_a_request_with_half_a_character_in_a_name_is_refused(tmp_path: Path, code: int, name: str) -> None:
    fields = BROKER | KV | {"topic": "T", "cluster": "c", "haServerAddr": ADDRESS, "__ZONE_NAME": "z"}
    frames = [
        sent
        for value in (MARK, f"a{MARK}", f"{ADDRESS}{MARK}")
        for sent in layouts(code, fields | {name: value}, BODIES.get(code, b""))
    ]
    told = asked(tmp_path, frames)
    assert (len(told), set(told) <= {1, 17}) == (len(frames), True), told


def test_a_zone_of_half_a_character_in_a_lookup_is_no_zone_of_any_group(tmp_path: Path) -> None:
    fields = {"topic": "T", "__ZONE_NAME": MARK, "__ZONE_MODE": "true"}
    frames = [frame(json_header(103, BROKER), BODIES[103]), *layouts(105, fields, b"")]
    assert set(asked(tmp_path, frames)) <= {0, 17}


def test_half_a_character_in_another_address_than_the_brokers_is_passed_over(tmp_path: Path) -> None:
    body = json.dumps({"filterServerList": [ADDRESS + MARK]}).encode().replace(MARK.encode(), HALF_BYTES)
    frames = layouts(103, BROKER | {"haServerAddr": ADDRESS + MARK, "bodyCrc32": MARK}, body)
    assert asked(tmp_path, frames) == [0, 0, 0]


def test_half_a_character_in_a_registration_refuses_it_and_bytes_that_are_no_utf_8_do_not(tmp_path: Path) -> None:
    escaped = frame(json_header(103, BROKER), ODD_TOPIC.replace(MARK.encode(), rb"\ud800"))
    raw = frame(json_header(103, BROKER), ODD_TOPIC.replace(MARK.encode(), HALF_BYTES))
    assert asked(tmp_path, [escaped, raw]) == [1, 0]


def test_half_a_character_in_the_name_of_a_group_refuses_the_request(tmp_path: Path) -> None:
    body = json.dumps({"queueDatas": [{"brokerName": HALF}]}).encode()
    assert asked(tmp_path, [frame(json_header(217, {"topic": "T"}), body)]) == [1]


def test_settings_with_odd_bytes_are_refused(tmp_path: Path) -> None:
    assert asked(tmp_path, [frame(json_header(318), b"key=" + HALF_BYTES)]) == [1]
