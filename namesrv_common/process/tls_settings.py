"""The settings of TLS, the same for every program: what a listener shows, and what a client shows and checks.

A program that is both takes both classes; then one certificate is for both sides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, model_validator

from namesrv_common.client.channels import ClientFiles, ClientSecurity
from namesrv_common.tls.certificates import Validity
from namesrv_common.tls.listener_tls import CertificateCheck, ListenerTls


class _KeyPairSettings(BaseModel):
    tls_cert: Path | None = Field(
        None,
        description="This program's certificate, and those that it was signed by, PEM. Read again when it changes.",
    )
    tls_key: Path | None = Field(None, description="Its private key, PEM, not encrypted. Read again when it changes.")

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_key is None else ("tls_key", "tls_cert")
            raise ValueError(f"{given} is set, but {missing} is not: a certificate and its key belong together")
        return self


class ListenerSecuritySettings(_KeyPairSettings):
    """Settings of a listener. With a certificate it takes TLS and nothing else."""

    tls_client_ca: Path | None = Field(
        None, description="Certificates that clients' are checked with, PEM: each must show one. Needs tls_cert."
    )

    @model_validator(mode="after")
    def _check_client_ca(self) -> Self:
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca is set, but tls_cert is not: clients are asked for certificates over TLS")
        return self

    @property
    def listens_with_tls(self) -> bool:
        return self.tls_cert is not None

    def listener_tls(self, check: CertificateCheck | None = None) -> ListenerTls | None:
        """Reads the files of the listener; None without TLS. Raises CertificateError."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return ListenerTls(self.tls_cert, self.tls_key, self.tls_client_ca, check=check)


class ClientSecuritySettings(_KeyPairSettings):
    """Settings of a client."""

    tls_ca: Path | None = Field(
        None, description="Certificates that servers' are checked with, PEM. Without it calls go without TLS."
    )
    token_file: Path | None = Field(None, description="File with a bearer token to send. Needs tls_ca.")
    tls_server_name: str | None = Field(
        None, min_length=1, max_length=253, description="Name that servers' certificates must have, if not their host."
    )

    @model_validator(mode="after")
    def _check_ca(self) -> Self:
        for name in ("token_file", "tls_server_name"):
            if getattr(self, name) is not None and self.tls_ca is None:
                raise ValueError(f"{name} is set, but tls_ca is not: it is for calls over TLS")
        return self

    def client_security(self) -> ClientSecurity | None:
        """Reads the files of the client; None without TLS. Raises CertificateError."""
        if self.tls_ca is None:
            return None
        files = ClientFiles(self.tls_ca, self.tls_cert, self.tls_key, self.token_file, self.tls_server_name)
        return ClientSecurity(files)


def certificates(listener: ListenerTls | None, client: ClientSecurity | None) -> dict[str, Validity]:
    """When the certificates that a program shows are valid, by what it shows them for: listener or client."""
    found = {
        "listener": None if listener is None else listener.value.validity,
        "client": None if client is None else client.validity,
    }
    return {use: validity for use, validity in found.items() if validity is not None}
