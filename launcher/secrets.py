"""Masks secrets, such as API keys: values of environment variables with certain names, and texts of known forms.

`mask` is for command lines and messages, and also masks values by key (`token=...`). `mask_patch` is for source code,
where `eos_token=tokenizer.eos_token` is not a secret: there only literals are masked by key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

MASK = "***"
# Shorter values are ordinary words, which must not be masked everywhere.
SHORTEST = 6

_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_KEYS = r"(?:api_?key|token|secret|password|passwd|credentials?)"
_SHAPES = (
    # an address with a user and a password
    (re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*:)[^\s/@'\"]+(?=@)", re.IGNORECASE), rf"\g<kept>{MASK}"),
    (re.compile(r"(?P<kept>\bbearer\s+)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\g<kept>{MASK}"),
    # the prefixes of the keys of Hugging Face, OpenAI, GitHub, Slack and AWS
    (re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|xox[abprs]-|AKIA)[A-Za-z0-9_-]{12,}"), MASK),
)
_BY_KEY = re.compile(rf"([\w.-]*{_KEYS}=)(?:\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE)
# In source code: a quoted literal, or a line of a file of variables, with letters and digits.
_MIXED = r"(?=[^\"'\s]*\d)(?=[^\"'\s]*[A-Za-z])[^\"'\s]{8,}"
_LITERAL = re.compile(rf"(\b\w*{_KEYS}[\"']?\s*[:=]\s*)([\"']){_MIXED}\2", re.IGNORECASE)
_ASSIGNED = re.compile(rf"^(\+(?:export )?[A-Z0-9_]*{_KEYS.upper()}[A-Z0-9_]*=){_MIXED}$")
_TELLING = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[^\s/\\]{12,}")
_PEM_BEGIN, _PEM_END = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"), "-----END "


def of_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The secret values of the environment with their variables' names.

    Values of several lines count line by line too.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, str] = {}
    for name, value in environment.items():
        if _NAME.search(name):
            for part in (value, *value.splitlines()):
                if len(part.strip()) >= SHORTEST:
                    values.setdefault(part.strip(), name)
    return values


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without secrets of the environment, without texts of known forms, and without values of such keys."""
    return _BY_KEY.sub(rf"\1{MASK}", _shapes(_values(text, environment)))


def mask_patch(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The same for a patch of source code: by key only literals, and only in added lines."""
    lines = []
    in_key = False
    for line in _values(text, environment).split("\n"):
        # Removed lines and context are in the commit. If they were masked, the patch would not apply.
        if line.startswith("+") and not line.startswith("+++ "):
            in_key = in_key and _PEM_END not in line
            masked = (
                f"+{MASK}" if in_key else _LITERAL.sub(rf"\1\2{MASK}\2", _ASSIGNED.sub(rf"\1{MASK}", _shapes(line)))
            )
            in_key = in_key or bool(_PEM_BEGIN.search(line))
            line = masked
        lines.append(line)
    return "\n".join(lines)


def _values(text: str, environment: Mapping[str, str] | None) -> str:
    for value in sorted(of_environment(environment), key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def _shapes(text: str) -> str:
    for shape, kept in _SHAPES:
        text = shape.sub(kept, text)
    return text


def within(tree: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """(dotted key, variable) of every string in a tree of plain values that is a secret of the environment.

    A part of a string counts if the secret looks like one; a variable called KEY may also hold a folder.
    """
    values = of_environment(environment)
    if values:
        yield from _within(tree, values, "")


def _within(value: Any, secrets: Mapping[str, str], at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _within(item, secrets, f"{at}.{key}" if at else str(key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _within(item, secrets, f"{at}.{number}")
    elif isinstance(value, str):
        for secret, name in secrets.items():
            if value == secret or (secret in value and _TELLING.fullmatch(secret)):
                yield at, name
