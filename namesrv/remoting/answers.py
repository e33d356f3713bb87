"""The answers to requests that are refused: RocketMQ's codes, and texts for people."""

from __future__ import annotations

from namesrv.core.errors import Reason, Refused
from namesrv.engines.api import GoAway
from namesrv.error_codes import ERROR_CODES, ResponseCode
from namesrv.remoting.limits import MAX_REMARK_CHARACTERS
from namesrv.remoting.wire.codes import GO_AWAY_VERSION
from namesrv.remoting.wire.headers import BINARY_HEADER, JSON_HEADER, Request, answer, answer_to
from namesrv.runtime_settings import ROCKETMQ_DENIED

_PLEASE = "please go away"
GO_AWAY = GoAway(
    GO_AWAY_VERSION,
    [answer_to(0, encoding, ResponseCode.GO_AWAY, remark=_PLEASE) for encoding in (JSON_HEADER, BINARY_HEADER)],
)
"""The answer of a server that ends. Clients that know it ask again over another connection."""


def refusal(request: Request, error: Refused) -> bytes:
    if error.reason == Reason.SHUTTING_DOWN and request.version > GO_AWAY_VERSION:
        return answer(request, ResponseCode.GO_AWAY, remark=_PLEASE)
    return answer(request, ERROR_CODES[Reason(error.reason)].rocketmq, remark=_remark(error)[:MAX_REMARK_CHARACTERS])


def no_such_topic(request: Request, topic: str) -> bytes:
    """The answer to a lookup of a topic that is not there, in RocketMQ's words."""
    shown = topic[:MAX_REMARK_CHARACTERS]
    remark = (
        f"No topic route info in name server for the topic: {shown}"
        "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )
    return answer(request, ResponseCode.TOPIC_NOT_EXIST, remark=remark)


def _remark(error: Refused) -> str:
    """The text about an error: RocketMQ's words, where tools or people look for them, and a remedy."""
    if error.reason == Reason.KV_NOT_FOUND:
        namespace, key = error.metadata["namespace"], error.metadata.get("key")
        return f"No config item, Namespace: {namespace}" + ("" if key is None else f" Key: {key}")
    if error.reason == Reason.CONFIG_KEY_DENIED and error.metadata["key"] in ROCKETMQ_DENIED:
        return "Can not update config in black list."
    words = ERROR_CODES[Reason(error.reason)].words
    return f"{words}: {error.text}" if words else error.text
