"""What a user asks about logs: the options of the command line, and those of study.yaml, which may hold more."""

from __future__ import annotations

import glob
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from analysis.sources.import_runs import ImportRequest
from analysis.sources.log import BadImport
from analysis.sources.naming import Naming
from analysis.spec.figure_spec import Direction
from analysis.spec.validation import KEY_ALONE, Listed, Objection, Section, objections
from launcher.files import load_yaml

FILE = "study.yaml"
#: Where a study goes that is not told where.
INTO = Path("study/comparison")
_EXAMPLE = "write, say, paths: [runs_a, runs_b]"

_OneOrMore = Annotated[Listed[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
_Text = str | None


class StudyOptions(Section):
    """study.yaml: the options of `report PATHS` by their names, and the section `analysis`. Paths begin in the folder
    of the file."""

    paths: _OneOrMore = Field((), description="a list of folders and files of logs, each PATH or GROUP=PATH")
    into: _Text = Field(None, description="the folder of the study, as FOLDER/NAME")
    group: _Text = Field(None, description="the configuration key that holds a run's group")
    seed: _Text = Field(None, description="the configuration key that holds a run's seed")
    factor: _OneOrMore = Field((), description="a list of configuration keys, those of the factors")
    match: _Text = Field(None, description="a pattern of run names: (?P<group>...), (?P<seed>...); others are factors")
    map: _Text = Field(None, description="a CSV file of run, group, seed and factors")
    baseline: _Text = Field(None, description="the group that the others are compared with")
    metric: _OneOrMore = Field((), description="a list of metrics, the primary one first")
    direction: Direction | None = Field(None, description="higher, lower or null (as is known of the metric)")
    paired: bool = Field(False, description="true or false")
    step: _Text = Field(None, description="the metric, or the column of CSV files, that counts the steps")
    analysis: dict[str, Any] = Field({}, description="the section analysis of an experiment")


def request(given: Mapping[str, Any], words: Sequence[str]) -> ImportRequest:
    """What is asked for: the options given, over those of a study.yaml if that is the only path, or there is none.
    words: the command.

    Raises BadImport with everything that is wrong with the file, and for paths that do not exist.
    """
    texts: Sequence[str] = given.get("paths") or [FILE]
    file = texts[0] if len(texts) == 1 and Path(texts[0]).suffix in (".yaml", ".yml") else None
    if file is not None and not given.get("paths") and not Path(file).exists():
        fix = f"give the folder of an experiment, or folders of logs; or write {FILE}"
        raise BadImport(Objection("PATH", KEY_ALONE, f"no path is given, and this folder has no {FILE}", fix))
    content = {} if file is None else _content(Path(file))
    options = StudyOptions.model_validate({**content, **given, **({"paths": content["paths"]} if file else {})})
    groups, said = _groups(options.paths)
    table = None if options.map is None else Path(options.map)
    naming = Naming(options.group, options.seed, options.factor, options.match, table)
    by_path = len({*groups.values()}) > 1 and not naming.says("group")
    into = options.into or str(INTO)
    return ImportRequest(
        sources=tuple(groups),
        into=Path(into),
        naming=naming,
        groups={place: group for place, group in groups.items() if by_path or place in said},
        baseline=next(iter(groups.values())) if by_path and options.baseline is None else options.baseline,
        metrics=options.metric,
        direction=options.direction,
        paired=options.paired,
        step=options.step,
        analysis=options.analysis,
        file=file,
        command=shlex.join([*words, *([] if "into" in given else ["--into", into])]),
    )


def _content(file: Path) -> dict[str, Any]:
    """The options of a file, with its paths from the working directory."""
    try:
        content = load_yaml(file)
    except (OSError, ValueError) as error:
        rule = f"cannot be read: {' '.join(str(error).split())}"
        raise BadImport(Objection(str(file), KEY_ALONE, rule, "correct the file")) from error
    if not isinstance(content, dict):
        raise BadImport(Objection(str(file), KEY_ALONE, "must hold a mapping of options", _EXAMPLE))
    wrong = objections(StudyOptions, content, "", file=str(file))
    if not wrong and not content.get("paths"):
        wrong.add("paths", KEY_ALONE, "names no logs", _EXAMPLE, file)
    wrong.raise_any(BadImport)
    beside = {key: str(file.parent / content[key]) for key in ("into", "map") if content.get(key)}
    paths = [content["paths"]] if isinstance(content["paths"], str) else content["paths"]
    return {**content, **beside, "paths": [_from(file.parent, text) for text in paths]}


def _from(folder: Path, text: str) -> str:
    """A path that begins in a folder, from the working directory."""
    group, equals, path = ("", "", text) if _named(folder / text) else text.rpartition("=")
    return f"{group}{equals}{folder / path}"


def _named(path: str | Path) -> tuple[Path, ...]:
    """The path if it exists, or what it is a pattern of."""
    whole = Path(path).expanduser()
    return (whole,) if whole.exists() else tuple(map(Path, sorted(glob.glob(str(whole)))))


def _groups(texts: Sequence[str]) -> tuple[dict[Path, str], frozenset[Path]]:
    """The places that the paths name, with the group of each, and those whose group is given: GROUP=PATH.

    Raises BadImport for a path that names nothing, or what another one names.
    """
    groups: dict[Path, str] = {}
    given: set[Path] = set()
    paths: dict[str, tuple[str, tuple[Path, ...]]] = {}  # as it was given: without its group, and what it names
    for text in texts:
        name, _, path = ("", "", text) if _named(text) or "=" not in text else text.partition("=")
        if not (places := _named(path)):
            fix = f"write {meant}" if (meant := Path("multirun", path)).is_dir() else "correct the path"
            raise BadImport(Objection("PATH", path, "this file or folder does not exist", fix))
        if path in paths or not groups.keys().isdisjoint(places):
            raise BadImport(Objection("PATH", path, "this place is named twice", "name it once"))
        last = places[0].resolve()
        short = path if len(places) > 1 else last.name if last.is_dir() else last.stem
        paths[path] = short, places
        groups |= dict.fromkeys(places, name)
        given |= {*places} if name else set()
    twice = Counter(short for path, (short, places) in paths.items() if given.isdisjoint(places))
    for path, (short, places) in paths.items():
        if given.isdisjoint(places):
            groups |= dict.fromkeys(places, str(Path(path)) if twice[short] > 1 else short)
    return groups, frozenset(given)
