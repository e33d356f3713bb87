"""Metadata, deadlines, status and peers, between gRPC's words and HTTP/2's headers."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

import grpc
import pytest

from namesrv.server.engines.envoy.headers import headers_of, metadata_of, peer_of, status_headers, timeout_seconds
from namesrv.server.engines.envoy.identity import names_of
from namesrv.server.engines.envoy.messages import RefusedRequest
from support.certificates import Authority


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"2H", 7200), (b"3M", 180), (b"4S", 4), (b"5m", 0.005), (b"6u", 6e-6), (b"7n", 7e-9), (b"0m", 0)],
)
def test_a_deadline_has_a_unit(value: bytes, seconds: float) -> None:
    assert timeout_seconds(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"5", b"S", b"-1S", b"1.5S", b"123456789S", b"1x", b"\xff"])
def test_what_is_no_deadline_is_refused(value: bytes) -> None:
    with pytest.raises(RefusedRequest, match="grpc-timeout is no time"):
        timeout_seconds(value)


def test_metadata_comes_without_what_the_transport_and_envoy_put_there() -> None:
    headers = [
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"x-forwarded-client-cert", b"By=somebody"),
        (b"x-envoy-internal", b"true"),
        (b"authorization", b"Bearer x"),
        (b"trace-bin", b"AAE"),
        (b"trace-bin", b"AA==,AQ"),
        (b"bad-bin", b"A"),
    ]
    assert metadata_of(headers) == (
        ("authorization", "Bearer x"),
        ("trace-bin", b"\x00\x01"),
        ("trace-bin", b"\x00"),
        ("trace-bin", b"\x01"),
    )


def test_metadata_goes_out_with_binary_values_in_base64() -> None:
    assert headers_of([("a", "b"), ("c-bin", b"\x00\x01")]) == [(b"a", b"b"), (b"c-bin", b"AAE")]


def test_a_status_text_is_percent_encoded() -> None:
    details = "50 % ümläut\nnext"
    assert dict(status_headers(grpc.StatusCode.NOT_FOUND, details))[b"grpc-status"] == b"5"
    sent = dict(status_headers(grpc.StatusCode.NOT_FOUND, details))[b"grpc-message"]
    assert sent.isascii()
    assert sent.startswith(b"50 %25 ")
    assert unquote(sent.decode()) == details
    assert status_headers(grpc.StatusCode.OK, "") == [(b"grpc-status", b"0")]


def test_peers_are_written_as_grpcio_writes_them() -> None:
    assert peer_of(("127.0.0.1", 5)) == "ipv4:127.0.0.1:5"
    assert peer_of(("::1", 5)) == "ipv6:%5B::1%5D:5"
    assert peer_of(None) == "unknown:"


def forwarded(certificate: Path) -> bytes:
    """What Envoy says of a certificate."""
    return f'Hash=0a;Cert="{quote(certificate.read_text(), safe="")}"'.encode()


def test_a_certificate_has_the_names_that_grpcio_finds_in_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("the CN", ["a.example", "b.example"], ["spiffe://x/y"])
    assert names_of(forwarded(pair.certificate)) == {
        "x509_common_name": [b"the CN"],
        "peer_dns": [b"a.example", b"b.example"],
        "peer_uri": [b"spiffe://x/y"],
    }
    plain = authority.sign("plain", file_name="plain")
    assert names_of(forwarded(plain.certificate)) == {"x509_common_name": [b"plain"]}


def test_a_name_that_looks_like_two_is_one(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("x", uris=['spiffe://x/y;DNS=admin.example",Cert="'])
    names = names_of(forwarded(pair.certificate))
    assert list(names["peer_uri"]) == [b'spiffe://x/y;DNS=admin.example",Cert="']
    assert list(names["peer_dns"]) == []


def test_without_a_certificate_there_are_no_names() -> None:
    assert names_of(b"") == {}
    assert names_of(b'Cert="nonsense"') == {}
