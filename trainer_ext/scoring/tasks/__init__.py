"""Tasks: prompts, demonstrations where there are any, and rewards.

A task is a module, here or of another installed package, with these functions; `task` is the section of conf/task:

    @task("mine")
    rows(task) -> list[Row]   # a row may say which split it is in: a task that has a test file brings its own
    compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float or mapping  # see rewards.py
    reward(task) -> such a function   # instead of compute_score, if the section `task` chooses it
    demonstration(row, generator, random_fraction) -> str   # if embedded models learn it before training
    preference(ground_truth, generator, extra_info) -> (chosen, rejected)   # if it has pairs for DPO
    files(task) -> list[Path]   # if it reads local files; prepared prompts are made again when these change
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer_ext.objection import Objection
from trainer_ext.registry import Part
from trainer_ext.scoring import reward_models, rewards
from trainer_ext.scoring.artifacts import build_once
from trainer_ext.scoring.reward_models import folders

#: Decorator of a task's function `rows`; the module that it stands in is the task.
task = Part("name", inputs=1, section="task", group="rlsweep.tasks")
#: The functions that a task may have, and that some methods and models require.
OPTIONAL = ("demonstration", "preference")
#: Keys of the section `task` that change neither prompts nor rewards nor demonstrations.
NOT_DATA = ("reward_timeout_s",)

#: The prompts to train on, those that a checkpoint is chosen by, and those that are reported.
TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLITS = (TRAIN, VALIDATION, TEST)


@dataclass(frozen=True)
class Row:
    """One prompt (a user's message) and what its answer is checked against.

    split: one of SPLITS, or None: the prompt's content decides. worked_answer: an answer to learn from, if the data has
    one. system: the system's message; before: earlier messages, each with `role` and `content`. metadata: what the
    reward gets in `extra_info` beside the prompt's `index` and `split`, unless it has keys of these names; of plain
    values, one type for each key. where: its place in a file, as tables.lines has it.
    """

    prompt: str
    ground_truth: str
    split: str | None = None
    worked_answer: str = ""
    system: str = ""
    before: Sequence[Mapping[str, str]] = field(default=(), hash=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    where: str = field(default="", compare=False)

    @property
    def messages(self) -> list[dict[str, str]]:
        """What a chat template reads."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *map(dict, self.before), {"role": "user", "content": self.prompt}]

    @property
    def text(self) -> str:
        """The messages but for the system's, by which rows are divided."""
        return text_of(self.messages) if self.before else self.prompt


def get(name: str) -> ModuleType:
    """The task's module. Objection names the tasks that there are.

    Of the modules in this folder, only the one with that name is imported. The others are then not part of the code of
    its runs.
    """
    names = [name]
    if f"{__name__}.{name}" not in sys.modules:  # to list the folder takes longer than most rewards
        here = [module.name for module in pkgutil.iter_modules(__path__)]
        names = [name] if name in here else here
    for module in names:
        importlib.import_module(f"{__name__}.{module}")  # waits for another thread that is importing it
    return sys.modules[task.get(name).function.__module__]


def bad_row(
    where: str, rule: str, fix: str = "correct the file, or the key of the section task that names the column"
) -> Objection:
    """What is wrong in a file of prompts. where: "FILE, line N", as tables.lines has it."""
    file, _, line = where.rpartition(", ")
    return Objection(line, None, rule, fix, file or None)


def files(section: Mapping[str, Any]) -> list[Path]:
    """The local files that a task reads, as its function `files` names them."""
    return list(getattr(get(section["name"]), "files", lambda _: ())(section))


def text_of(messages: Iterable[Mapping[str, str]]) -> str:
    """The text of messages but for the system's."""
    return "\n".join(message["content"] for message in messages if message["role"] != "system")


def order(messages: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """By which prompts are told apart and put in order: hashes of their text, and of the system's message, if any."""
    system = "".join(f"\0 {message['content']}" for message in messages if message["role"] == "system")
    return digest(text_of(messages)), digest(system)


def reward(section: Mapping[str, Any]) -> Callable[..., Any] | rewards.Together:
    """The reward of a task; section: the configuration's section `task`. `task.reward=reward_model` is every task's.

    Objection: the section chooses a function that does not exist, or its reward model cannot be used.
    """
    if section.get("reward") == folders.NAME:
        return reward_models.reward_model(section)
    if section.get("learned_reward"):
        return reward_models.RewardModel(Path())  # it is trained when a run starts
    module = get(section["name"])
    return module.reward(section) if hasattr(module, "reward") else module.compute_score


def scorer(section: Mapping[str, Any]) -> rewards.Scorer:
    """What gives the responses of a task their rewards; section: the configuration's section `task`."""
    # runs that older versions planned have no limit
    return rewards.Scorer(section["name"], reward(section), section.get("reward_timeout_s"))


def divide(rows: Iterable[Row], shares: Mapping[str, float]) -> dict[str, list[Row]]:
    """Rows by split. Equal texts are in one split, whatever their order, their white space and the system's message.

    shares: of `validation` and `test` (trainer.split). A row without a split goes where the hash of its prompt falls,
    so that further rows move no other. A split that the rows bring themselves gets no others; of a prompt that they put
    into several, test counts before validation, and validation before train. Outside the training split each prompt
    stands once, and the order is that of the hashes: the first N are a random choice of N, and always the same.
    Objection: a row is in another split.
    """
    rows = list(rows)
    brought = {row.split for row in rows}
    if unknown := sorted(map(str, brought - {None, *SPLITS})):
        rule = f"the split of a row is one of {', '.join(SPLITS)}, or None"
        raise Objection("rows", unknown[0], rule, "give the row one of these")
    bounds = {name: 0.0 if name in brought else float(shares[name]) for name in (VALIDATION, TEST)}
    hashes = [digest(row.text) for row in rows]
    of_prompt: dict[str, str] = {}
    for row, hashed in zip(rows, hashes, strict=True):
        place = int(hashed[:16], 16) / 2**64
        by_hash = TEST if place < bounds[TEST] else VALIDATION if place < bounds[TEST] + bounds[VALIDATION] else TRAIN
        of_prompt[hashed] = max(row.split or by_hash, of_prompt.get(hashed, TRAIN), key=SPLITS.index)
    divided: dict[str, list[Row]] = {name: [] for name in SPLITS}
    held = {order(row.messages) for row, hashed in zip(rows, hashes, strict=True) if row.split == of_prompt[hashed]}
    for row, hashed in zip(rows, hashes, strict=True):
        if bounds.get(split := of_prompt[hashed], 1.0) or order(row.messages) in held:
            divided[split].append(row)
    return {name: own if name == TRAIN else distinct(own) for name, own in divided.items()}


def distinct(rows: Sequence[Row]) -> list[Row]:
    """The first row of each prompt, in the order of the prompts' hashes."""
    first = {order(row.messages): row for row in reversed(rows)}
    return [first[hashed] for hashed in sorted(first)]


def content(path: Path) -> str:
    """The sha256 of a file, in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(prompt: str) -> str:
    """A hash of a prompt without its white space; the order of the hashes is as good as random, and always the same."""
    return hashlib.sha256(" ".join(prompt.split()).encode()).hexdigest()


def rows_by_split(
    section: Mapping[str, Any], shares: Mapping[str, float], reserved: bool = False
) -> dict[str, list[Row]]:
    """A task's prompts, divided. section: the configuration's section `task`; shares: trainer.split; reserved: the
    prompts of which a share is kept for the learned reward alone, instead of the others.

    Objection: no prompt is left to train on, or a row is in another split.
    """
    rows = get(section["name"]).rows(section)
    if section.get("learned_reward"):
        share = float(section["learned_reward"]["share"])
        places = [int(digest(row.text)[16:32], 16) / 2**64 for row in rows]  # other digits than those of the split
        rows = [r for r, place in zip(rows, places, strict=True) if (r.split != TEST and place < share) == reserved]
    divided = divide(rows, shares)
    if not divided[TRAIN]:
        raise empty(TRAIN, divided)
    return divided


def empty(split: str, divided: Mapping[str, Sequence[Row]]) -> Objection:
    """Why a run cannot start whose task has no prompt in a split that it reads. divided: its prompts, for TRAIN."""
    if split == TRAIN:
        rule = f"the task has no prompt to train on; equal prompts count once, and {len(divided[VALIDATION])} of them "
        rule += f"are for validation and {len(divided[TEST])} for the test"
        return Objection("task.name", None, rule, "give it more prompts, which are none of these")
    key = f"trainer.split.{split}"
    rule = f"the task has no {split} prompt, which evaluations need"
    return Objection(key, None, rule, f"give the task more prompts, raise {key}, or set trainer.eval_every=0")


def prepare(section: Mapping[str, Any], shares: Mapping[str, float], cache: Path) -> Path:
    """The folder of a task's prompts, one Parquet file a split with verl's columns, made once and kept by content. Rows
    that JSON can hold are also in a .jsonl file each split: to import Arrow takes 36 MB, and pandas with it 50 MB more.

    section: the configuration's section `task`; shares: trainer.split. The folder is named by the content.
    """
    name = section["name"]
    settings = {k: v for k, v in section.items() if k not in ("warm_start", *NOT_DATA)} | {"split": dict(shares)}
    # of the rewards, too: artifacts that are made of responses and their rewards are named by this folder
    code = [Path(__file__), Path(rewards.__file__), *_sources(get(name)), rewards.file_of(reward(section))]
    sources = [content(path) for path in (*code, *files(section), *folders.files(section))]
    key = hashlib.sha256(json.dumps([settings, sources], sort_keys=True).encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        write(folder, name, rows_by_split(section, shares))
        for path in folder.glob("*.parquet"):
            with suppress(TypeError):
                path.with_suffix(".jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in _parquet_rows(path)))

    return build_once(cache / "data" / key, build)


def read(folder: Path, split: str) -> list[dict[str, Any]]:
    """The rows of a split in a folder of `prepare`, with verl's columns `prompt`, `reward_model` and `extra_info`."""
    path = folder / f"{split}.jsonl"
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            return [*map(json.loads, file)]
    return _parquet_rows(path.with_suffix(".parquet"))


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    # not `read_table`, which imports pandas and more of Arrow: 60 MB
    return pq.ParquetFile(path).read(columns=["prompt", "reward_model", "extra_info"]).to_pylist()


def write(folder: Path, name: str, divided: Mapping[str, Sequence[Row]]) -> None:
    """Write the rows of a task, one Parquet file a split with verl's columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = schema([row for rows in divided.values() for row in rows])
    for split, rows in divided.items():
        lines: list[dict[str, Any]] = [
            {
                "data_source": name,
                "prompt": row.messages,
                "ability": name,
                "reward_model": {"style": "rule", "ground_truth": row.ground_truth},
                "extra_info": {"index": index, "split": split, **row.metadata},
            }
            for index, row in enumerate(rows)
        ]
        pq.write_table(pa.Table.from_pylist(lines, schema=columns), folder / f"{split}.parquet")


def _sources(module: ModuleType) -> list[Path]:
    """The files of a task's module, and of those of this package that it takes functions from."""
    named = {getattr(value, "__module__", None) or "" for value in vars(module).values()}
    shared = {name for name in named if name.startswith(f"{__name__}.")} - {module.__name__}
    return [Path(sys.modules[name].__file__ or "") for name in (module.__name__, *sorted(shared))]


def schema(rows: Sequence[Row]) -> Any:
    """verl's columns for all rows, named so that a split without a prompt has them too.

    Objection: the values of a key of the metadata are not of one type that Parquet has; it names the first such row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def refused(values: Sequence[Any]) -> Exception | None:
        try:
            own[key] = pa.array(values).type
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema({key: own[key]})).close()
        except Exception as error:
            return error
        return None

    text = pa.string()
    own: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row.metadata):
        values = [row.metadata.get(key) for row in rows]
        if (error := refused(values)) is not None:
            first = bisect_left(range(1, len(rows)), True, key=lambda count: refused(values[:count]) is not None)
            file, _, line = (rows[first].where or f", prompt {first + 1}").rpartition(", ")
            rule = f"the values up to {values[first]!r:.100} are of no one type that Parquet has: {error}"
            fix = "write all of the column as text, or remove it"
            raise Objection(f"{line}: {key}", None, rule, fix, file or None) from error
    return pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct({"index": pa.int64(), "split": text, **own}),
        }
    )
