"""The page for client authors says what the contract and the server say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import grpc
import pytest
from namesrv_api.v1.error_reason_pb2 import ErrorReason

from docs.tools import generate_clients as generator
from namesrv.error_codes import ERROR_CODES


@pytest.fixture(scope="module")
def codes() -> dict[str, str]:
    """Reason to code, as the page has them."""
    file = generator.read_contract()[generator.REASONS_FILE]
    return {reason.name: reason.code for reason in generator.error_reasons(file)}


def test_the_page_is_up_to_date() -> None:
    command = [sys.executable, generator.__file__, "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert done.returncode == 0, f"run: python docs/tools/generate_clients.py\n{done.stdout}{done.stderr}"


def test_every_error_reason_has_a_grpc_code(codes: dict[str, str]) -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()}  # noqa: SIM118 # not a mapping
    assert codes.keys() == reasons - {"UNSPECIFIED"}
    assert set(codes.values()) <= {code.name for code in grpc.StatusCode} - {"OK", "UNKNOWN"}


def test_the_server_answers_each_reason_with_the_code_on_the_page(codes: dict[str, str]) -> None:
    answered = {str(reason): codes.grpc.name for reason, codes in ERROR_CODES.items()}
    assert answered.items() <= codes.items()


def test_every_link_of_the_page_leads_to_exactly_one_heading() -> None:
    text = (generator.DOCS / "clients.md").read_text(encoding="utf-8")
    headings = Counter(generator._anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))

    assert [heading for heading, count in headings.items() if count > 1] == []
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) - headings.keys() == set()
