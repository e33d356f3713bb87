"""Each package of the product says what it contains and where to begin reading."""

from __future__ import annotations

import ast

from tests.support.pages import ROOT

PACKAGES = ("groundwork", "namesrv", "broker_agent", "route_client", "route_pipeline", "nsctl")


def test_each_package_of_the_product_says_what_lives_there_and_where_to_begin() -> None:
    packages = [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    assert len(packages) > len(PACKAGES)
    texts = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in packages}
    assert [str(path) for path, text in texts.items() if "Begin reading in" not in " ".join(str(text).split())] == []
