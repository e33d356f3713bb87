"""A broker and clients of RocketMQ with TLS: one name server takes both, another asks for certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives import serialization

from tests.rocketmq.conftest import ALLOWED, REGISTERED_SECONDS, address_of
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.rocketmq_programs.programs import Broker, Properties, Shell
from tests.support.secured.certificates import Authority, Files

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


class Secured(NamedTuple):
    """Two name servers with TLS, and a broker at both."""

    permissive: NamesrvProcess
    enforcing: NamesrvProcess
    broker: Broker
    properties: Properties
    """Of a client that has a certificate."""
    authority: Authority


def properties_of(authority: Authority, shown: Files) -> Properties:
    """What a program of RocketMQ is told to use TLS with, show a certificate and check the other's."""
    key = serialization.load_pem_private_key(shown.key.read_bytes(), None)
    pkcs8 = shown.key.with_suffix(".pkcs8")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pkcs8.write_bytes(key.private_bytes(*form))
    return {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.certPath": str(shown.certificate),
        "tls.client.keyPath": str(pkcs8),
        "tls.client.trustCertPath": str(authority.path),
        "tls.client.authServer": "true",
        "tls.server.certPath": str(shown.certificate),
        "tls.server.keyPath": str(pkcs8),
        "tls.config.file": "none",
    }


@pytest.fixture(scope="module")
def secured(home: Path) -> Iterator[Secured]:
    authority = Authority(home / "authority")
    server = authority.sign("namesrv", ["localhost"], ips=["127.0.0.1"])
    shown = ("--tls-cert", str(server.certificate), "--tls-key", str(server.key))
    properties = properties_of(authority, authority.sign("broker", ["localhost"], ips=["127.0.0.1"]))
    asks = ("--tls-client-ca", str(authority.path), "--remoting-tls", "enforcing")
    either = ("--remoting-tls", "permissive")
    with (
        NamesrvProcess(*ALLOWED, *shown, *either, "--data-dir", str(home / "tls-0")) as permissive,
        NamesrvProcess(*ALLOWED, *shown, *asks, "--data-dir", str(home / "tls-1")) as enforcing,
    ):
        both = f"{address_of(permissive)};{address_of(enforcing)}"
        only_tls = {**properties, "tls.server.mode": "enforcing"}
        with Broker(home, both, "broker-t", properties=only_tls) as broker:
            broker.listening()
            for namesrv in (permissive, enforcing):
                eventually(
                    lambda: [line["addr"] for line in namesrv.events("broker_registered")],  # noqa: B023
                    lambda found: broker.addr in found,
                    REGISTERED_SECONDS,
                )
            yield Secured(permissive, enforcing, broker, properties, authority)
        for namesrv in (permissive, enforcing):
            assert namesrv.events("internal_defect") == []


def test_messages_go_through_with_certificates_on_every_connection(secured: Secured, home: Path) -> None:
    address = address_of(secured.enforcing)
    with Shell(home / "tls-shell", properties=secured.properties) as shell:
        made = shell.mqadmin(address, "updateTopic", "-b", secured.broker.addr, "-t", "Secured", "-r", "2", "-w", "2")
        assert "success" in made
        assert "sent 10" in shell.messages("send", address, "Secured", "10")
        assert "received 10" in shell.messages("receive", address, "Secured", "10")
