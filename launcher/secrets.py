"""Masks secrets, such as API keys: values of environment variables with certain names, and texts of known shapes.

`mask` is for command lines and messages. `mask_patch` is for source code, where `eos_token=tokenizer.eos_token` is not
a secret: there only literals are masked by name. The shapes are those of detect-secrets, which is imported only for a
text that may have one, and those of services that it does not know.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePath
from typing import Any

MASK = "***"
# Shorter values are ordinary words, which must not be masked everywhere.
SHORTEST = 6

_VARIABLE = re.compile(
    r"KEY|TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|WEBHOOK|(?:^|_)(?:PASS|PAT|AUTH|DSN)$|_PWD$", re.IGNORECASE
)
# The end of a name, in source code and in files of settings. The value of a password may be a word; the others have
# letters and digits. KEY alone also names what is looked up in a mapping, so it counts in capitals only.
_PASSWORD = r"(?:passw(?:or)?d|passphrase|(?<![A-Za-z0-9])pwd)"
_KEYS = r"(?:api|access|account|auth|client|encryption|master|private|secret|service|signing|storage)[_-]?key"
_TOKEN = (
    rf"(?:{_KEYS}|token|secret|credentials?|(?<![A-Za-z0-9])(?:auth|pass|pat)|(?-i:(?<=_)(?<!PUBLIC_)(?<!CACHE_)KEY))"
)
_SUFFIX = r"(?:[_-]?(?:base|value|dev|prod|test|\d+))?"
_IS = r"(?:\\*[\"'`])?\]?\s*(?::\s*\w+\s*=|={1,3}|:=?|=>)\s*"
# One random key of twenty letters and digits in thirty has no digit. Unlike words, it changes between small letters and
# capitals often, and has capitals side by side.
_LETTERS = r"(?=[A-Za-z]{16})(?-i:(?=[A-Za-z]*[A-Z]{2})(?=(?:[A-Za-z]*?[a-z][A-Z]){3}))"
_MIXED = rf"(?:(?=[^\"'`\s]*\d)(?=[^\"'`\s]*[A-Za-z])|{_LETTERS})(?![<\[{{$%*(])[^\"'`\s\\]{{8,}}"
_LITERALS = (
    re.compile(rf"(?P<kept>{_PASSWORD}{_SUFFIX}{_IS}\\*(?P<quote>[\"'`]))(?![<{{$%*])[^\"'`\n\\]{{6,}}", re.IGNORECASE),
    re.compile(
        rf"(?P<kept>(?:{_TOKEN}|{_PASSWORD}){_SUFFIX}(?:{_IS}|[\"'],\s*)\\*(?P<quote>[\"'`])){_MIXED}(?=\\*(?P=quote))",
        re.IGNORECASE,
    ),
)
_ASSIGNED = (
    *_LITERALS,
    re.compile(rf"(?P<kept>{_PASSWORD}{_SUFFIX}{_IS})(?![<{{$%*(\[\"'`])[^\s\"'`,;&]{{6,}}", re.IGNORECASE),
    re.compile(rf"(?P<kept>{_TOKEN}{_SUFFIX}{_IS})(?=[^,;&\s]{{8,}}){_MIXED.replace('{8,}', '*')}", re.IGNORECASE),
    # .netrc
    re.compile(r"(?P<kept>(?:^\+?|\blogin\s+\S+)\s*\bpassword\s+)\S+(?=\s*$)"),
)
_BY_NAME = re.compile(
    rf"(?P<kept>(?:{_PASSWORD}|{_TOKEN}){_SUFFIX}=)(?:\"[^\"]*\"|'[^']*'|\S+)"
    rf"|(?P<flag>--[\w-]*(?:{_PASSWORD}|{_TOKEN}|-key){_SUFFIX} )(?!-)\S+",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?i)\.(?:c|cc|cpp|cs|cuh?|go|h|hpp|java|jl|jsx?|kt|lua|php|py[ix]?|r|rb|rs|tsx?)\s*$")
_PREFIXES = (
    r"AGE-SECRET-KEY-|AIza|ATATT3|dapi|dckr_pat_|dop_v1_|figd_|github_pat_|gh[a-z]_|glsa_|GOCSPX-|gsk_|hf_|api_org_"
    r"|hv[bs]\.|jina_|lin_api_|lsv2_[a-z]{2}_|NRAK-|npm_|ntn_|nvapi-|pcsk_|PMAK-|pplx-|pul-|r8_|rubygems_|sbp_"
    r"|shp[a-z]{2}_|sk-(?:[a-z]+\d*-){0,3}|[rs]k_(?:live|test)_|sntrys_|tgp_v1_|tskey-|wandb_v1_|whsec_|xai-|xapp-"
    r"|xox[a-z]-|ya29\."
)
_SHAPES = (
    # an address with a user and a password
    re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@'\"]*:)(?![{$<])[^\s/@'\"]+(?=@)", re.IGNORECASE),
    re.compile(r"(?P<kept>\bbearer\s+)(?=\S*\d)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE),
    re.compile(r"(?P<kept>\bauthorization[\"']?\s*[:=]\s*[\"']?basic\s+)[A-Za-z0-9+/=]{6,}", re.IGNORECASE),
    re.compile(r"(?P<kept>\bx-[\w-]*(?:key|token)[\"']?\s*[:,]\s*[\"']?)(?=[^\s\"']*\d)[^\s\"'{$<]{8,}", re.IGNORECASE),
    # a signed address
    re.compile(r"(?P<kept>[?&](?:sig|X-Amz-Signature|X-Goog-Signature)=)[^&\s\"']{16,}"),
    re.compile(rf"(?P<kept>)\b(?:{_PREFIXES})(?=[\w.-]*\d)[A-Za-z0-9]{{12,}}[\w.-]*"),
    re.compile(r"(?P<kept>)\b(?:hf|api_org)_[A-Za-z]{34}\b"),  # these have no digits
    re.compile(r"(?P<kept>\bwandb\.login\(.*?key\s*=\s*[\"'])[0-9a-f]{40}"),
)
_LEAST = 16  # characters of a secret that detect-secrets knows
_TELLING = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[^\s/\\]{12,}")
_LONG = re.compile(r"[\w+-]{16,}")
# These detectors of detect-secrets are too wide for source code, or slow. Shapes above replace all but the first.
_LEFT_OUT = frozenset({"IPPublicDetector", "BasicAuthDetector", "NpmDetector", "PrivateKeyDetector"})

_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\bPrivate-Lines: \d+")
_KEY_BODY = re.compile(rf"(?P<kept>{_KEY_BEGIN.pattern})(?=[^-]*[A-Za-z0-9+/]{{16}}).*?(?=-----END |\Z)", re.DOTALL)
_KEY_LINE = re.compile(r"[\s\"'`#*,()+;]*(?:[\w-]+: .*|[A-Za-z0-9+/=]*)(?:\\[nr])*[\s\"'`,()+;\\]*")
_FILE = re.compile(
    r"(?i)\.env|\.env\.(?!example$|sample$|template$|dist$).+|.+\.env|[._]netrc|kubeconfig"
    r"|\.(?:pgpass|npmrc|pypirc|git-credentials|htpasswd|dockercfg|boto|s3cfg|my\.cnf)"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|.+\.(?:pem|key|p8|p12|pfx|jks|keystore|kdbx|ppk)"
    r"|(?:.*[._-])?(?:token(?:\.json|\.txt)?|(?:credentials?|secrets?|passwords?|passwd|api[_-]?keys?"
    r"|(?:service|gcp|gcloud)[_-]?account)(?:[_-][^.]*(?:\.apps\..*)?)?"
    r"(?:\.(?:json|ya?ml|toml|ini|cfg|conf|txt|csv|properties|xml))?)"
)
_FOLDERS = frozenset({".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".secrets"})


def of_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The secret values of the environment with their variables' names.

    Values of several lines count line by line too.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, str] = {}
    for name, value in environment.items():
        if _VARIABLE.search(name):
            for part in (value, *value.splitlines()):
                if len(part.strip()) >= SHORTEST:
                    values.setdefault(part.strip(), name)
    return values


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without secrets of the environment, without texts of known shapes, and without values of such names."""
    text = _shapes(_values(text, _longest_first(environment)))
    return _BY_NAME.sub(lambda match: f"{match['kept'] or match['flag']}{MASK}", _substituted(_LITERALS, text))


def mask_patch(text: str, environment: Mapping[str, str] | None = None) -> str:
    """`mask` for a patch of source code: under secret names, only literals in added lines are masked."""
    values = _longest_first(environment)
    lines: list[str] = []
    by_name: Sequence[re.Pattern[str]] = _ASSIGNED
    in_hunk, in_key = True, False
    for line in text.split("\n"):
        if line.startswith("diff --git "):
            in_hunk = in_key = False
        elif not in_hunk:
            if line.startswith("+++ "):
                by_name = _LITERALS if _CODE.search(line) else _ASSIGNED
            in_hunk = line.startswith("@@ ")
        # Removed lines and context are in the commit. If they were masked, the patch would not apply.
        if in_hunk:
            line = _values(line, values)
            in_key = in_key and _KEY_LINE.fullmatch(line[1:]) is not None
            if line.startswith("+"):
                line = f"+{MASK}" if in_key else _substituted(by_name, _shapes(line))
            begin = _KEY_BEGIN.search(line)
            in_key = in_key or (begin is not None and _KEY_LINE.fullmatch(line[begin.end() :]) is not None)
        lines.append(line)
    return "\n".join(lines)


def is_credentials_file(path: PurePath) -> bool:
    """Whether a file has a name that tools use for credentials alone: .env, id_rsa, credentials.json."""
    return _FILE.fullmatch(path.name) is not None or not _FOLDERS.isdisjoint(path.parts[:-1])


def _longest_first(environment: Mapping[str, str] | None) -> list[str]:
    return sorted(of_environment(environment), key=len, reverse=True)


def _values(text: str, values: Sequence[str]) -> str:
    for value in values:
        text = text.replace(value, MASK)
    return text


def _shapes(text: str) -> str:
    text = _substituted(_SHAPES, _KEY_BODY.sub(rf"\g<kept>{MASK}", text))
    if any(re.search(r"\d", word) for word in _LONG.findall(text)):
        for shape in _known_shapes():
            text = shape.sub(_without_secret, text)
    return text


def _substituted(patterns: Sequence[re.Pattern[str]], text: str) -> str:
    for pattern in patterns:
        text = pattern.sub(rf"\g<kept>{MASK}", text)
    return text


@cache
def _known_shapes() -> tuple[re.Pattern[str], ...]:
    """The shapes of detect-secrets. A match goes on to the end of its word, so that a longer key has no rest."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    kept = [plugin for plugin in get_mapping_from_secret_type_to_class().values() if plugin.__name__ not in _LEFT_OUT]
    shapes = [shape for plugin in kept if issubclass(plugin, RegexBasedDetector) for shape in plugin.denylist]
    return tuple(re.compile(rf"(?:{shape.pattern})[\w+/=.-]*", shape.flags) for shape in shapes)


def _without_secret(match: re.Match[str]) -> str:
    """A match with its longest group masked, or all of it if its groups are only prefixes, such as `ghp`."""
    at = max(range(len(match.groups()) + 1), key=lambda group: (group > 0, len(match[group] or "")))
    at = at if len(match[at] or "") >= _LEAST else 0
    if not re.search(r"\d", match[at]):
        return match[0]
    begin, end = (place - match.start() for place in match.span(at))
    return f"{match[0][:begin]}{MASK}{match[0][end:]}"


def within(tree: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """(dotted key, variable) of every string in a tree of plain values that is a secret of the environment.

    A part of a string counts if the secret looks like one; a variable called KEY may also hold a folder.
    """
    yield from _within(tree, of_environment(environment), "")


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
