"""The group, seed and factors of an imported run: from its path, its configuration, its name, or a map file."""

from __future__ import annotations

import csv
import glob
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from analysis.sources.log import BadImport
from analysis.sources.notation import whole
from analysis.sources.source import CONFIGURATIONS, LoggedRun
from analysis.spec.cell import grouped
from analysis.spec.validation import KEY_ALONE, Diagnostics, Objection, closest, some

_LISTED = 12  # keys named in a message
_FIRST = 3  # runs named of those with the same problem
_COLUMNS = ("run", "group", "seed")
_PLANNED = "rlsweep."  # begins the keys of what the plan of an experiment says of its runs
_WITHOUT = {"group": ": then the names of the runs say it", "seed": ", and runs are counted"}
_DIGITS = re.compile(r"([0-9]+)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
#: What says the seed in a name: ppo/seed1, ppo_seed2, grpo-s1, ppo run3.
SEED = re.compile(r"(?:^|[/_.= -])(?:seed|s|run)[=_ -]?(\d+)(?=$|[/_. -])", re.IGNORECASE)
#: What tools call one of several logs of a run: seed0/train and seed0/eval, seed0_train and seed0_eval.
_LOG = re.compile(
    r"(?:^|[_.-])(?:train(?:ing)?|eval(?:uations?)?|val(?:id(?:ation)?)?|test|metrics|logs?|[ct]sv|txt|jsonl?|gz|parquet"
    r"|tb|tensorboard|events?|history)(?=$|[_.-])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Naming:
    """How runs are named. group, seed, factors: keys of a run's configuration, dotted; match: a regular expression on
    its name, whose groups `group` and `seed` say it; map: a CSV file of run, group, seed and factors, or its rows by
    run."""

    group: str | None = None
    seed: str | None = None
    factors: tuple[str, ...] = ()
    match: str | None = None
    map: Path | Mapping[str, Mapping[str, str]] | None = None

    def says(self, word: str) -> bool:
        """Whether it says the `group`, or the `seed`, of each run. Without a seed, runs are counted."""
        return bool(getattr(self, word) or self.map or f"(?P<{word}>" in (self.match or ""))


@dataclass(frozen=True)
class Named:
    """A run with its place in the experiment."""

    run: LoggedRun
    group: str
    seed: int
    factors: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """For a message: group C1, seed 0, gamma 1.2."""
        more = "".join(f", {key} {level}" for key, level in self.factors.items())
        return f"group {self.group}, seed {self.seed}{more}"


def name(runs: Sequence[LoggedRun], naming: Naming) -> tuple[list[Named], list[str]]:
    """The runs with their places in the experiment, and the names that a map leaves out. Where nothing says the seeds,
    they are those of the plans if all runs are of rlsweep; else the runs of a place are counted from 1 in the order of
    their names.

    Raises BadImport with every run that has no place, or the place of another.
    """
    problems = Diagnostics()
    mapped = _read_map(naming.map) if isinstance(naming.map, Path) else naming.map
    said = _matched(runs, naming.match or "", problems) if mapped is None else mapped
    if not naming.says("group") and any(run.group is None for run in runs):
        keys = some(sorted(set.intersection(*({*run.about} for run in runs))), _LISTED)
        rule = "no option says the groups, and one path holds all runs; the keys that every configuration has: " + keys
        fix = "give --group KEY; or --match with (?P<group>...) for the names of runs, such as "
        fix += f"{runs[0].name}; or --map FILE; or each group's folder as a PATH of its own"
        raise BadImport(Objection("--group", KEY_ALONE, rule, fix))
    placed = (_values(run, naming, said[run.name], problems) for run in runs if run.name in said)
    named, left_out = [each for each in placed if each is not None], []
    if is_planned(runs) and mapped is None:
        named = _as_planned(named, naming)
    elif not naming.says("seed"):
        named = _counted(named)
    if mapped is not None:
        left_out = [run.name for run in runs if run.name not in mapped]
        there = {run.name for run in runs}
        for missing in sorted(set(mapped) - there):
            rule = f"no run has this name; the runs are {some(sorted(there), _LISTED)}"
            problems.add("run", missing, rule, "name one of them", naming.map)
    problems += _doubled(named)
    _together(problems).raise_any(BadImport)
    return named, left_out


def with_seeds(runs: Sequence[LoggedRun], naming: Naming) -> Naming:
    """The naming, with the key `seed` if nothing says the seeds and the configurations have it, another for each run of
    a group."""
    if naming.says("seed") or any(whole(run.about.get("seed")) is None for run in runs):
        return naming
    try:
        name(runs, found := replace(naming, seed="seed"))
    except BadImport:
        return naming
    return found


def in_names(runs: Sequence[LoggedRun], naming: Naming) -> dict[str, dict[str, str]]:
    """The rows of a map, read from names such as ppo/seed1, ppo_seed2 and grpo-s1; none if an option says the groups,
    or if a name does not say its seed. The names are those of the paths, if each path has one run.

    A group is the rest of a name, without the folders that all have, and without the levels of a table's rows.
    """
    keys = (naming.seed, *naming.factors)  # of a table whose columns are runs, the level is the name
    ends = ["/".join(["", *(text for key, text in run.texts.items() if key in keys)]) for run in runs]
    parts = [(run.group or run.name.removesuffix(end)).split("/") for run, end in zip(runs, ends, strict=True)]
    while min(map(len, parts)) > 1 and len({part[0] for part in parts}) == 1:
        parts = [part[1:] for part in parts]
    texts = ["/".join(part) for part in parts]
    seeds = [SEED.findall(text) for text in texts]
    if naming.says("group") or any(len(found) != 1 for found in seeds):
        return {}
    rests = [[part.strip("_. -") for part in SEED.sub("", text).split("/") if part] for text in texts]
    for end in (0, -1):
        while min(map(len, rests)) > 1 and len({rest[end] for rest in rests}) == 1:
            rests = [rest[1:] if end == 0 else rest[:-1] for rest in rests]
    groups = ["/".join(rest) for rest in rests]
    cells = [repr([run.about.get(key) for key in naming.factors]) for run in runs]
    places = {*zip(groups, (int(seed) for [seed] in seeds), cells, strict=True)}
    if not all(groups) or not 1 < len({*groups}) < len({place[:2] for place in places}) or len(places) < len(runs):
        return {}
    return {run.name: {"group": group, "seed": seed} for run, group, [seed] in zip(runs, groups, seeds, strict=True)}


def refuse_several_logs(runs: Sequence[LoggedRun], naming: Naming) -> None:
    """Raises BadImport where several logs of one run, such as seed0/train and seed0/eval, would count as runs."""
    problems = Diagnostics()
    logs = () if naming.says("seed") or is_planned(runs) else [((run.group, _without_log(run)), run) for run in runs]
    by_name = grouped(logs)
    for (group, name), of_run in by_name.items():
        if len(of_run) > 1:
            folder, _, own = name.rpartition("/")
            short = [f"*{run.name.rpartition(own)[2]}" for run in of_run]
            rule = f"{len(of_run)} logs of this run would count as runs of their own: {some(short, _FIRST)}"
            # with what the names of the group have in common, so that it finds no run of another group
            parts = [(of, *other.rpartition("/")) for of, other in by_name]
            owns = [other for *place, _, other in parts if place == [group, folder]]
            begin = _common(owns)
            end = _common([other[len(begin) :][::-1] for other in owns])[::-1]
            patterns = [glob.escape(before + begin) + "*" + glob.escape(end + after)
                        for before, _, after in (str(run.log.place).rpartition(own) for run in of_run)]  # fmt: skip
            common = max(patterns, key=lambda pattern: len(glob.glob(pattern))).removeprefix(f"{Path.cwd()}/")
            fix = f"give one for each run of a group, such as {group or 'GROUP'}='{common}'"
            problems.add(f"run {name}", KEY_ALONE, rule, f"{fix}, or name those that count in a --map file")
    _together(problems).raise_any(BadImport)


def _common(texts: Sequence[str]) -> str:
    """What all texts begin with."""
    return "".join(same[0] for same in itertools.takewhile(lambda of: len({*of}) == 1, zip(*texts, strict=False)))


def _without_log(run: LoggedRun) -> str:
    """The name of the run that has this log: it ends at the folder of the seed, and has no word such as train."""
    parts = run.name.split("/")
    seeds = [place for place, part in enumerate(parts, start=1) if SEED.search(part)]
    if seeds and run.group is not None:  # in one path that holds all runs, the method may stand below the seed
        parts = parts[: seeds[-1]]
    while len(parts) > 1 and not _LOG.sub("", parts[-1]).strip("_.-"):
        parts.pop()
    return "/".join([*parts[:-1], _LOG.sub("", parts[-1]).strip("_.-") or parts[-1]])


def _values(run: LoggedRun, naming: Naming, said: Mapping[str, str], problems: Diagnostics) -> Named | None:
    """The place of a run, of which a map or its name says some fields; None, with the problems, if it has none."""
    fields: dict[str, Any] = {**said}
    before = len(problems)
    factors = {key: level_of(value) for key, value in fields.items() if key not in ("group", "seed")}
    if run.group is not None:
        fields["group"] = run.group
    if not naming.says("seed"):
        fields["seed"] = 0
    keys = [(word, key) for word, key in (("group", naming.group), ("seed", naming.seed)) if word not in fields]
    for word, key in [*keys, *(("factor", key) for key in naming.factors)]:
        if key is None:
            rule = f"--match {naming.match!r} does not say its {word}"
            problems.add(f"run {run.name}", KEY_ALONE, rule, f"write one that does, or give --{word} KEY")
        elif key not in run.about:
            rule = f"its configuration has no such key; it has {some(sorted(run.about), _LISTED)}"
            rule += "" if run.about else f" in {some(CONFIGURATIONS, _LISTED)} beside its log"
            fix = closest(key, list(run.about), otherwise="name one of its keys, or use --map FILE or --match REGEX")
            fix += f"; or leave out --{word}{_WITHOUT[word]}" if word in _WITHOUT else ""
            fix += f", or leave the run out ({run.problem})" if run.problem else ""
            problems.add(f"run {run.name}: --{word} {key}", KEY_ALONE, rule, fix)
        elif word == "factor":
            level = run.about[key]
            if isinstance(level, str):  # YAML reads 1e-3 as a text, and 0.001 as a number
                run.texts, level = {key: level, **run.texts}, level_of(level)
            factors[key] = level if isinstance(level, (str, int, float, bool)) or level is None else str(level)
        else:
            fields[word] = run.about[key] if word == "seed" else run.texts.get(key, run.about[key])  # 1.10 is not 1.1
    if len(problems) > before:
        return None
    group, seed = str(fields["group"]).strip(), whole(fields["seed"])
    if seed is None:
        rule = "must be a whole number of 64 bits"
        problems.add(f"run {run.name}: seed", fields["seed"], rule, "name another key")
    if not group:
        problems.add(f"run {run.name}: group", fields["group"], "must not be empty", "name another key")
    return None if seed is None or not group else Named(run, group, seed, factors)


def is_planned(runs: Sequence[LoggedRun]) -> bool:
    """Whether all runs are of experiments of rlsweep, which know their seeds and the levels of their factors."""
    return all(_PLANNED + "seed" in run.about for run in runs)


def _as_planned(named: Sequence[Named], naming: Naming) -> list[Named]:
    """Runs of experiments with what their plans say, and no option: the seed; and as factors their levels, and their
    methods where a path has several."""
    methods = grouped((each.group, each.run.about[_PLANNED + "group"]) for each in named)
    several = any(len({*of_group}) > 1 for of_group in methods.values())
    made = []
    for each in named:
        said = {key.removeprefix(_PLANNED): level for key, level in each.run.about.items() if key.startswith(_PLANNED)}
        seed, method = said.pop("seed"), said.pop("group")
        factors = {**said, **({"method": method} if several else {}), **each.factors}
        made.append(replace(each, seed=each.seed if naming.says("seed") else seed, factors=factors))
    return made


def _in_words(run_name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers in names by their size."""
    return [(int(part) if part.isdigit() else 0, part) for part in _DIGITS.split(run_name)]


def _counted(named: Sequence[Named]) -> list[Named]:
    """The runs with seeds that count those of each place, 2 before 10."""
    count: Counter[str] = Counter()
    made = []
    for member in sorted(named, key=lambda each: _in_words(each.run.name)):
        count[member.place] += 1
        made.append(replace(member, seed=count[member.place]))
    return made


def counted_apart(named: Sequence[Named]) -> list[Named]:
    """The runs with seeds that count those of each cell, if groups have several cells of two or more runs and no seed
    is in two cells, so that seeds tell nothing of runs in different cells; else as they are."""
    of_cell = grouped(((each.group, repr(sorted(each.factors.items()))), each.seed) for each in named)
    cells = Counter(group for group, _ in of_cell)
    several = min(cells.values(), default=0) > 1 and min(map(len, of_cell.values())) > 1
    if not several or len({(each.group, each.seed) for each in named}) < len(named):
        return [*named]
    return _counted([replace(each, seed=0) for each in named])


def _together(problems: Diagnostics) -> Diagnostics:
    """The objections, those of several runs that differ in nothing else as one."""
    shared = grouped((str(replace(each, key=each.key.partition(": ")[2])), each) for each in problems)
    made = Diagnostics()
    for first, *others in shared.values():
        runs = [each.key.partition(": ")[0].removeprefix("run ") for each in (first, *others)]
        key = first.key.replace(f"run {runs[0]}", f"{len(runs)} runs ({some(runs, _FIRST)})")
        made.append(replace(first, key=key) if others else first)
    return made


def _doubled(named: Sequence[Named]) -> Diagnostics:
    """Runs with the same place, and the keys that tell them apart."""
    first: dict[tuple[str, int, str], Named] = {}
    problems = Diagnostics()
    for run in named:
        other = first.setdefault((run.group, run.seed, repr(sorted(run.factors.items()))), run)
        if other is run:
            continue
        a, b = other.run.about, run.run.about
        differ = [key for key in sorted({*a, *b}) if a.get(key) != b.get(key) and not key.startswith("wandb.")]
        apart = f"add --factor with one of {', '.join(differ[:_LISTED])}, or " if differ else ""
        both = f"runs {other.run.name} and {run.run.name}"
        problems.add(both, KEY_ALONE, f"both are {run.place}", f"{apart}leave one of the runs out")
    return problems


@lru_cache(4096)
def level_of(text: str) -> Any:
    """A level in a file or a name, as a number if it is one."""
    if not _NUMBER.fullmatch(text):
        return text
    try:
        return int(text)
    except ValueError:
        return float(text)


def _matched(runs: Sequence[LoggedRun], match: str, problems: Diagnostics) -> dict[str, dict[str, str]]:
    """What an expression says of each run by its name, "" nothing; names that it does not match are problems."""
    if not match:
        return {run.name: {} for run in runs}
    try:
        pattern = re.compile(match)
    except re.error as error:
        rule = f"not a regular expression ({error})"
        raise BadImport(Objection("--match", match, rule, "correct the expression")) from error
    if not pattern.groupindex:
        fix = "write, say, (?P<group>[^/]+)/seed(?P<seed>[0-9]+)"
        raise BadImport(Objection("--match", match, "has no named part", fix))
    said = {}
    for run in runs:
        if (found := pattern.search(run.name)) is None:
            rule = f"--match {match!r} does not match the name"
            problems.add(f"run {run.name}", KEY_ALONE, rule, "write a more general one")
        else:
            said[run.name] = {key: value for key, value in found.groupdict().items() if value is not None}
    return said


def _read_map(path: Path) -> dict[str, dict[str, str]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadImport(Objection("--map", path, f"cannot be read: {error}", "correct the file")) from error
    mapped: dict[str, dict[str, str]] = {}
    for number, row in enumerate(rows, start=2):
        lacking = [column for column in _COLUMNS if not row.get(column)]
        if lacking or None in row:
            what = f"missing or empty: {', '.join(lacking)}" if lacking else "it has more cells than the first line"
            rule = f"must have the columns run, group and seed (others are factors); {what}"
            raise BadImport(Objection(f"line {number}", KEY_ALONE, rule, "correct this line", str(path)))
        if row["run"] in mapped:
            raise BadImport(Objection(f"line {number}: run", row["run"], "occurs twice", "remove one line", str(path)))
        mapped[row["run"]] = {key: value for key, value in row.items() if key != "run"}
    if not mapped:
        fix = "write a first line run,group,seed and then one line for each run"
        raise BadImport(Objection(str(path), KEY_ALONE, "names no run", fix))
    return mapped
