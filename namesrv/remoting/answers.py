"""The answers to requests that are refused: RocketMQ's codes, and texts for people."""

from __future__ import annotations

from namesrv.core import errors
from namesrv.remoting.limits import MAX_REMARK_CHARACTERS
from namesrv.remoting.wire.codes import GO_AWAY_VERSION, ResponseCode
from namesrv.remoting.wire.headers import Request, answer

_CODES: dict[type[errors.CallRefused], ResponseCode] = {
    errors.TopicNotFound: ResponseCode.TOPIC_NOT_EXIST,
    errors.KvNotFound: ResponseCode.QUERY_NOT_FOUND,
    errors.ConfigKeyDenied: ResponseCode.NO_PERMISSION,
    errors.Overloaded: ResponseCode.SYSTEM_BUSY,
    errors.NotImplementedYet: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
}
"""All other errors are SYSTEM_ERROR. A client drops what it knows of a topic on TOPIC_NOT_EXIST and no other code."""

_WORDS: dict[type[errors.CallRefused], str] = {
    errors.Crc32NotMatch: "crc32 not match",
    errors.RegistryWarming: "name server not ready",
    errors.Overloaded: "[OVERLOAD]system busy, start flow control for a while",
    errors.ReadOnlyReplica: "name server not ready",
}


def refusal(request: Request, error: errors.CallRefused) -> bytes:
    code = _CODES.get(type(error), ResponseCode.SYSTEM_ERROR)
    if isinstance(error, errors.ShuttingDown) and request.version > GO_AWAY_VERSION:
        return answer(request, ResponseCode.GO_AWAY, remark="please go away")
    return answer(request, code, remark=_remark(error)[:MAX_REMARK_CHARACTERS])


def no_such_topic(request: Request, topic: str) -> bytes:
    """The answer to a lookup of a topic that is not there, in RocketMQ's words."""
    shown = topic[:MAX_REMARK_CHARACTERS]
    remark = (
        f"No topic route info in name server for the topic: {shown}"
        "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )
    return answer(request, ResponseCode.TOPIC_NOT_EXIST, remark=remark)


def _remark(error: errors.CallRefused) -> str:
    """The text about an error: RocketMQ's words, where tools or people look for them, and ours."""
    if isinstance(error, errors.KvNotFound):
        namespace, key = error.metadata["namespace"], error.metadata.get("key")
        return f"No config item, Namespace: {namespace}" + ("" if key is None else f" Key: {key}")
    if isinstance(error, errors.ConfigKeyDenied):
        return "Can not update config in black list."
    words = _WORDS.get(type(error))
    return error.message if words is None else f"{words}: {error.message}"
