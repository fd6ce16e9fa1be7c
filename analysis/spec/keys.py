"""Keys and names of files, made of names that people chose."""

from __future__ import annotations

import unicodedata


def key_of(name: str, also: str = "") -> str:
    """The name with its letters, marks and digits of any script; everything else but the characters `also` is one
    underscore, and none at the ends."""
    plain = [
        char if char in also or unicodedata.category(char)[0] in "LMN" else " "
        for char in unicodedata.normalize("NFC", name).replace("_", " ")
    ]
    return "_".join("".join(plain).split())
