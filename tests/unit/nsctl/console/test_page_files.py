"""What the page is made of: readable colours, and nothing that makes markup of text."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STATIC = files("nsctl.console") / "static"
PAIRS = [
    *(("text", back) for back in ("page", "surface", "idle-back")),
    *(("quiet", back) for back in ("page", "surface")),
    *(("accent", back) for back in ("page", "surface")),
    *((kind, f"{kind}-back") for kind in ("good", "warn", "bad", "idle")),
    ("on-accent", "accent"),
]
READABLE = 4.5
"""Contrast of text that people with weak sight can read (WCAG 2, level AA)."""


def schemes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", (STATIC / "console.css").read_text(), re.DOTALL)
    colours = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", text)) for text in (light, dark)]
    return {"light": colours[0], "dark": colours[1]}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "back"), PAIRS)
def test_text_is_readable_on_what_is_behind_it(scheme: str, text: str, back: str) -> None:
    colours = schemes()[scheme]
    dim, bright = sorted((luminance(colours[text]), luminance(colours[back])))
    assert (bright + 0.05) / (dim + 0.05) >= READABLE


def test_no_script_makes_markup_and_nothing_is_taken_from_elsewhere() -> None:
    found = [file for folder in (STATIC, STATIC / "views") for file in folder.iterdir() if file.is_file()]
    assert "main.js" in {file.name for file in found}
    for file in found:
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=|javascript:", text)
        assert not re.search(r"(https?:)?//[a-z]", text.replace("http://www.w3.org/2000/svg", "")), file.name
