"""Text that a language model or a stranger wrote, made safe to display."""

from __future__ import annotations

import unicodedata

_JOINERS = "\u200c\u200d\u00ad"  # of no width, but part of some scripts and of emoji; and the soft hyphen


def visible(text: str) -> str:
    """The text with a visible mark for each character that is invisible or changes the direction of what follows."""
    return "".join(map(_mark, text))


def _mark(char: str) -> str:
    if char in "\n\t" or char in _JOINERS:
        return char
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}U+{ord(char):04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
    return char
