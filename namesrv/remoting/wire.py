"""What crosses the wire in RocketMQ's protocol: codes, and headers with fields of requests and answers.

Headers are in JSON or in the binary form that RocketMQ calls ROCKETMQ.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from namesrv.app.field_rules import ADDRESS, NAME, check
from namesrv.core.errors import invalid_field
from namesrv.core.model import BrokerKey
from namesrv.engines.api import Again, FrameCall, GoAway
from namesrv.error_codes import ResponseCode
from namesrv.remoting.limits import MAX_FIELDS, MAX_NESTED_HEADER_BYTES


class RequestCode(IntEnum):
    """The requests that a name server of RocketMQ takes (RocketMQ: RequestCode)."""

    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST = 206
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC = 217
    GET_KVLIST_BY_NAMESPACE = 219
    GET_TOPICS_BY_CLUSTER = 224
    GET_SYSTEM_TOPIC_LIST = 304
    GET_UNIT_TOPIC_LIST = 311
    GET_UNIT_SUB_TOPIC_LIST = 312
    GET_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    QUERY_DATA_VERSION = 322
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904


OWN_VERSION = 513
"""The version in answers (RocketMQ: MQVersion): 5.5.0's, whose protocol this is."""

STANDARD_JSON_VERSION = 401
"""From 4.9.4 on, clients read keys of JSON in quotes only; some older ones read numbers as keys only without."""

PLEASE_GO_AWAY = "please go away"

JSON_HEADER = 0
BINARY_HEADER = 1
"""Encodings of headers (RocketMQ: SerializeType)."""

_ANSWER_FLAG = 1
_ONE_WAY_FLAG = 2
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_JAVA = 0
"""LanguageCode of Java: a language that a client does not know would break it."""

_ODD_BYTES = "surrogateescape"
"""Bytes that are no UTF-8 become halves of characters, which JSON can have, too. A call refuses a field with them, and
the connection stays."""
_scan = json.JSONDecoder(strict=False).raw_decode
_FIXED = struct.Struct(">hBhii")
"""Code, language, version, opaque, flag."""
_SHORT, _INT = struct.Struct(">H"), struct.Struct(">i")
_PREFIX = struct.Struct(">II")
_MEMBERS = rb'(?:[^"\[\]{}]{1,32}+|"(?:[^"\\]++|\\.)*+"){0,%d}+' % (5 * MAX_FIELDS)
_FLAT = re.compile(rb"\s*+\{%b(?:\{%b\}%b)?\}\s*+" % (_MEMBERS, _MEMBERS, _MEMBERS), re.DOTALL)
"""An object with at most one object in it, no list, and few members: a parser takes milliseconds for its texts."""
_JSON_ANSWER = (
    b'{"code":%%d,%%b"flag":1,"language":"JAVA","opaque":%%d,%%b"serializeTypeCurrentRPC":"JSON","version":%d}'
    % OWN_VERSION
)
"""The header of an answer: code, fields, number and remark are filled in."""
_encoded = json.JSONEncoder(separators=(",", ":")).encode
INT_BITS, LONG_BITS = 32, 64
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


def to_json(value: object) -> bytes:
    return _encoded(value).encode()


class BrokenFrame(Exception):
    """A frame whose header cannot be read: its connection has to be closed."""


class Request(NamedTuple):
    """One request."""

    code: int
    opaque: int
    """Its number, which joins the answer to it."""
    flag: int
    version: int
    """Its sender's, as RocketMQ counts them. 0 is unknown."""
    fields: Mapping[str, str]
    encoding: int
    """Of its header, which its answer's has, too."""
    body: bytes
    call: FrameCall
    """As the engine has it."""

    def tell(self, told: bytes) -> None:
        """Answers it, if its sender waits for an answer."""
        self.call.answer(b"" if self.is_one_way else told)

    def may_repeat(self, again: Again) -> None:
        """Says how it is answered when it comes again over its connection."""
        self.call.may_repeat((lambda: None if again() is None else b"") if self.is_one_way else again)

    @property
    def is_answer(self) -> bool:
        """Whether it is an answer, to nobody here: this name server asks nothing."""
        return bool(self.flag & _ANSWER_FLAG)

    @property
    def is_one_way(self) -> bool:
        """Whether its sender waits for no answer."""
        return bool(self.flag & _ONE_WAY_FLAG)

    # The fields. All of them travel as text.

    def text(self, name: str, *, may_be_empty: bool = False) -> str:
        """A field that must be there. Raises INVALID_FIELD, also if it has halves of characters."""
        value = self.fields.get(name)
        if value is None or not (value or may_be_empty):
            raise invalid_field(name, "is missing")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise invalid_field(name, "has characters that are none") from None
        return value

    def number(self, name: str, bits: int) -> int | None:
        """A whole number; None if the field is missing or is no number of so many bits. RocketMQ reads 0 then."""
        given = self.fields.get(name, "")
        value = int(given) if _NUMBER.fullmatch(given) else None
        return None if value is None or not -(1 << bits - 1) <= value < 1 << bits - 1 else value

    def switch(self, name: str) -> bool | None:
        """Whether the field is "true" in any case; None if it is missing."""
        value = self.fields.get(name)
        return None if value is None else value.lower() == "true"

    @property
    def bare_keys(self) -> bool:
        """Whether its sender wants numbers as keys of JSON without quotes."""
        return self.version < STANDARD_JSON_VERSION and not self.switch("acceptStandardJsonOnly")

    @property
    def broker(self) -> BrokerKey:
        """The broker group that it is about. Raises INVALID_FIELD."""
        cluster_name, broker_name = self.text("clusterName"), self.text("brokerName")
        check(("clusterName", cluster_name, NAME), ("brokerName", broker_name, NAME))
        return BrokerKey(cluster_name, broker_name)

    @property
    def broker_id(self) -> int:
        """Raises INVALID_FIELD."""
        value = self.number("brokerId", LONG_BITS)
        if value is None:
            shown = f"{self.fields.get('brokerId')!r:.40}"
            raise invalid_field("brokerId", f"is {shown}, not a number of {LONG_BITS} bits")
        return value

    @property
    def broker_addr(self) -> str:
        """The address of the broker that it is about. Raises INVALID_FIELD."""
        addr = self.text("brokerAddr")
        check(("brokerAddr", addr, ADDRESS))
        return addr

    @property
    def broker_names(self) -> tuple[str, str, str]:
        """The cluster, the name and the address of the broker that it is about, all unchecked."""
        given = self.fields.get
        return given("clusterName", ""), given("brokerName", ""), given("brokerAddr", "")


def is_address(text: str) -> bool:
    """Whether clients could connect to it."""
    return ADDRESS.problem(text) is None


def request_of(frame: FrameCall) -> Request:
    """Reads the header of a frame. Raises BrokenFrame if it cannot be read."""
    if frame.encoding == JSON_HEADER:
        return _of_json(frame)
    if frame.encoding == BINARY_HEADER:
        return _of_binary(frame)
    raise BrokenFrame(f"a header in the unknown encoding {frame.encoding}")


def answer(
    request: Request, code: int, body: bytes = b"", fields: Mapping[str, str] | None = None, remark: str | None = None
) -> bytes:
    return answer_to(request.opaque, request.encoding, code, body=body, fields=fields, remark=remark)


def answer_to(
    opaque: int, encoding: int, code: int, *, body: bytes = b"", fields: Mapping[str, str] | None = None,
    remark: str | None = None,
) -> bytes:  # fmt: skip
    """The answer to any request with that number, in that encoding."""
    if encoding == BINARY_HEADER:
        header = _binary_header(opaque, code, fields or {}, remark or "")
    else:
        ext_fields = b"" if fields is None else b'"extFields":%b,' % to_json(fields)
        said = b"" if remark is None else b'"remark":%b,' % to_json(remark)
        header = _JSON_ANSWER % (code, ext_fields, opaque, said)
    prefix = _PREFIX.pack(4 + len(header) + len(body), encoding << 24 | len(header))
    return b"".join((prefix, header, body))


def _of_json(frame: FrameCall) -> Request:
    if len(frame.header) > MAX_NESTED_HEADER_BYTES and _FLAT.fullmatch(frame.header) is None:
        raise BrokenFrame(f"a header of more than {MAX_NESTED_HEADER_BYTES} bytes that has more than fields")
    try:
        text = frame.header.decode(errors=_ODD_BYTES)
        values, end = _scan(text, 0)
    except (ValueError, RecursionError):
        raise BrokenFrame("a header that is no JSON") from None
    if type(values) is not dict or end != len(text):
        raise BrokenFrame("a header that is no JSON object")
    find: Callable[..., Any] = values.get
    numbers = find("code"), find("opaque", 0), find("flag", 0), find("version", 0)
    if not all(type(number) is int and _LOWEST <= number <= _HIGHEST for number in numbers):
        raise BrokenFrame("a header whose code, opaque, flag or version is no number of 32 bits")
    return Request(*numbers, _fields_of_json(find("extFields")), JSON_HEADER, frame.body, frame)


def _fields_of_json(values: object) -> Mapping[str, str]:
    if values is None:
        return {}
    if not isinstance(values, dict) or len(values) > MAX_FIELDS:
        raise BrokenFrame(f"a header whose extFields are no object of at most {MAX_FIELDS} fields")
    for value in values.values():
        if type(value) is not str:
            return {name: _text(value) for name, value in values.items() if value is not None}
    return values


def _text(value: object) -> str:
    """A field's value as text; RocketMQ reads it so, too."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise BrokenFrame("a header with a field that is no text")


def _of_binary(frame: FrameCall) -> Request:
    header = frame.header
    if len(header) < _FIXED.size:
        raise BrokenFrame(f"a binary header of {len(header)} bytes")
    code, _language, version, opaque, flag = _FIXED.unpack_from(header)
    _remark, at = _binary_text(header, _FIXED.size, _INT)
    length, at = _length(header, at, _INT)
    if length != len(header) - at:
        raise BrokenFrame(f"a binary header whose fields have {length} bytes of {len(header) - at}")
    fields: dict[str, str] = {}
    while at < len(header):
        name, at = _binary_text(header, at, _SHORT)
        fields[name], at = _binary_text(header, at, _INT)
        if len(fields) > MAX_FIELDS:
            raise BrokenFrame(f"a header of more than {MAX_FIELDS} fields")
    return Request(code, opaque, flag, version, fields, BINARY_HEADER, frame.body, frame)


def _length(header: bytes, at: int, form: struct.Struct) -> tuple[int, int]:
    """A length, and where what has it begins."""
    begin = at + form.size
    if begin > len(header):
        raise BrokenFrame("a binary header that ends within a length")
    (length,) = form.unpack_from(header, at)
    if not 0 <= length <= len(header) - begin:
        raise BrokenFrame(f"a binary header with a part of {length} bytes where {len(header) - begin} are left")
    return length, begin


def _binary_text(header: bytes, at: int, form: struct.Struct) -> tuple[str, int]:
    """A text after its length, and where it ends."""
    length, begin = _length(header, at, form)
    return header[begin : begin + length].decode(errors=_ODD_BYTES), begin + length


def _binary_header(opaque: int, code: int, fields: Mapping[str, str], remark: str) -> bytes:
    encoded: list[bytes] = []
    for name, value in fields.items():
        for form, text in ((_SHORT, name.encode()), (_INT, value.encode())):
            encoded += (form.pack(len(text)), text)
    ext_fields, told = b"".join(encoded), remark.encode(errors="replace")
    fixed = _FIXED.pack(code, _JAVA, OWN_VERSION, opaque, _ANSWER_FLAG)
    return b"".join((fixed, _INT.pack(len(told)), told, _INT.pack(len(ext_fields)), ext_fields))


GO_AWAY = GoAway(
    475,  # 5.3.1
    [answer_to(0, encoding, ResponseCode.GO_AWAY, remark=PLEASE_GO_AWAY) for encoding in (JSON_HEADER, BINARY_HEADER)],
)
"""The answer of a server that ends. Clients that know it ask again over another connection."""
