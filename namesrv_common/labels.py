"""Labels of brokers: their rules, which are those of Kubernetes, and how people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MAX_LABELS = 16
"""Most labels of one broker: each is in every route of its topics."""

MAX_LABEL_NAME_LENGTH = 63
"""Longest name in a key of a label, and longest value, in characters."""

MAX_LABEL_PREFIX_LENGTH = 253
"""Longest prefix of a key of a label, before the slash, in characters: a DNS subdomain."""

Labels = tuple[tuple[str, str], ...]
"""Keys and values, sorted by key."""

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PART_OF_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_PART_OF_DOMAIN}(\.{_PART_OF_DOMAIN})*")
_NAME_RULE = "must have ASCII letters, digits, '-', '_' and '.' only, and a letter or digit at both ends"
_DOMAIN_RULE = "must be a DNS subdomain"
_SHOWN_CHARACTERS = 70
"""Characters of a key or a value that an error repeats."""


def label_problem(labels: Mapping[str, str]) -> str | None:
    """Returns what is wrong with a key or a value, or None. Callers must check how many there are."""
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        problem = (
            (_problem("prefix", prefix, MAX_LABEL_PREFIX_LENGTH, _DOMAIN, _DOMAIN_RULE) if slash else None)
            or _problem("name", name, MAX_LABEL_NAME_LENGTH, _NAME, _NAME_RULE)
            or (_problem("value", value, MAX_LABEL_NAME_LENGTH, _NAME, _NAME_RULE) if value else None)
        )
        if problem is not None:
            return f"has the key {key[:_SHOWN_CHARACTERS]!r}, whose {problem}"
    return None


def _problem(part: str, text: str, most: int, form: re.Pattern[str], rule: str) -> str | None:
    if len(text) > most:
        return f"{part} has {len(text)} characters, at most {most}"
    return None if form.fullmatch(text) else f"{part} {text[:_SHOWN_CHARACTERS]!r} {rule}"


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Reads labels as people write them, ``key=value``. Raises ValueError."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text[:_SHOWN_CHARACTERS]!r} has no '='; write key=value")
        if key in labels:
            raise ValueError(f"has the key {key[:_SHOWN_CHARACTERS]!r} twice")
        labels[key] = value
    if len(labels) > MAX_LABELS:
        raise ValueError(f"has {len(labels)} labels, at most {MAX_LABELS}")
    if problem := label_problem(labels):
        raise ValueError(problem)
    return labels


def shown_labels(labels: Mapping[str, str]) -> list[str]:
    """Labels as people write them, sorted by key."""
    return [f"{key}={value}" for key, value in sorted(labels.items())]
