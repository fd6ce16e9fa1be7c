"""Summaries of Reddit posts (docs/tasks.md): prompts with a summary, or OpenAI's comparisons of two summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_ext.scoring.tasks import Row, bad_row, tables, task
from trainer_ext.scoring.tasks.tables import demonstration, files, preference, reward  # noqa: F401  (functions of the task)


@task("tldr")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The posts. A line without a post or without a summary is left out.

    A line has `prompt` with `completion` (trl-lib/tldr) or `label`, or it has `info`, `summaries` and `choice`
    (openai/summarize_from_feedback, comparisons), which is a pair for DPO. Objection: it has neither.
    """

    def make(where: str, line: Mapping[str, Any], split: str | None) -> Row | None:
        if "summaries" in line:
            return _comparison(where, line, split)
        column = next((name for name in ("completion", "label") if name in line), "completion")
        prompt, summary = (tables.text_at(line, name, where).strip() for name in ("prompt", column))
        return Row(prompt, summary, split, summary) if prompt and summary else None

    return tables.rows(task, make)


def _comparison(where: str, line: Mapping[str, Any], split: str | None) -> Row | None:
    info, summaries, choice = line.get("info"), line["summaries"], line.get("choice")
    known = isinstance(info, Mapping) and isinstance(summaries, list) and len(summaries) == 2 and choice in (0, 1)
    texts = [one.get("text") for one in summaries if isinstance(one, Mapping)] if known else []
    if len(texts) != 2 or not all(isinstance(one, str) for one in texts):
        raise bad_row(where, "a comparison has info, two summaries with text, and choice, which is 0 or 1")
    parts = {name: (info.get(name) or "").strip() for name in ("subreddit", "title", "post")}
    chosen, rejected = texts[choice].strip(), texts[1 - choice].strip()
    if not parts["post"] or not chosen:
        return None
    prompt = f"SUBREDDIT: r/{parts['subreddit']}\n\nTITLE: {parts['title']}\n\nPOST: {parts['post']}\n\nTL;DR:"
    return Row(prompt, chosen, split, chosen, metadata={"chosen": chosen, "rejected": rejected})
