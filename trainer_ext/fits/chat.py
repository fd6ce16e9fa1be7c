"""The tokens of a prompt's messages, by the files of a model's folder: without torch, as plans ask it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trainer_ext.objection import Objection

Messages = Sequence[Mapping[str, str]]


def plain(messages: Messages) -> str:
    """The text of messages for a model without a chat template."""
    return "\n".join(message["content"] for message in messages) + "\n"


class Encoder(NamedTuple):
    """encode: gives messages the tokens that a run gives them. unknown: texts of tokens that the model's embedding does
    not have, by their ids. Objection, of encode: the chat template cannot be applied to the messages."""

    encode: Callable[[Messages], list[int]]
    unknown: Mapping[int, str]


def encoder(folder: Path, template: str | None = None) -> Encoder | None:
    """Encodes as a run of the model does; None: the folder has no `tokenizer.json`.

    template: the chat template that the run gives the model; None: the folder's own.
    """
    if not (folder / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()  # a file may say that texts are cut; a run's prompts are not
    tokenizer.no_padding()
    template = template or _template(folder, _mapping(folder / "tokenizer_config.json"))
    known = math.inf
    with suppress(KeyError, TypeError, ValueError):  # what is wrong in this file is said of the model
        known = int(_mapping(folder / "config.json")["vocab_size"])
    unknown = {id: token.content for id, token in tokenizer.get_added_tokens_decoder().items() if id >= known}
    if template is None:
        return Encoder(lambda messages: list(tokenizer.encode(plain(messages)).ids), unknown)
    from transformers.utils import chat_template_utils

    render: Any = chat_template_utils.render_jinja_template  # its annotation says text, and it returns two lists
    named = special_tokens(folder)

    def encode(messages: Messages) -> list[int]:
        conversation = [dict(message) for message in messages]
        try:
            texts, _ = render([conversation], chat_template=template, add_generation_prompt=True, **named)
        except Exception as error:  # a template may do anything
            said = " ".join(str(error).split())
            rule = f"its chat template refuses the messages of a prompt: {type(error).__name__}: {said}"
            fix = "choose another model, or prompts of the roles that its template reads"
            if any(message["role"] == "system" for message in messages):
                fix = "set task.system_prompt=null if the template reads no system message, or choose another model"
            raise Objection("model.path", str(folder), rule, fix) from error
        return list(tokenizer.encode(texts[0], add_special_tokens=False).ids)

    return Encoder(encode, unknown)


def special_tokens(folder: Path) -> dict[str, str]:
    """The texts of the special tokens that a folder's files name, such as eos_token."""
    settings = [_mapping(folder / name) for name in ("special_tokens_map.json", "tokenizer_config.json")]
    tokens = {key: value for section in settings for key, value in section.items() if key.endswith("_token")}
    # a token's text stands alone or in a mapping
    special = {key: value.get("content") if isinstance(value, Mapping) else value for key, value in tokens.items()}
    return {key: value for key, value in special.items() if isinstance(value, str)}


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The template that transformers chooses: a file of its own before the tokenizer's settings."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    given = settings.get("chat_template")
    if isinstance(given, list):  # several by name
        given = {template["name"]: template["template"] for template in given}.get("default")
    return given


def _mapping(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
