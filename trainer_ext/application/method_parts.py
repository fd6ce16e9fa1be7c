"""Methods composed from parts: what one or several method files choose, as overrides for Hydra.

Several files are combined by taking from each the choices (and values) that differ from the baseline. Two files that
choose differently for one part exclude each other. A list part, which takes any subset, gets the union of the choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from analysis.spec.validation import words
from launcher.application import Composed
from launcher.config.hydra_compose import ERRORS, Composer, leaves, spelled
from launcher.errors import Diagnostics
from launcher.planning import schema
from launcher.text import shown
from trainer_ext.application.verl_tree import prune

BASELINE = "c0_grpo"


def parts(composer: Composer) -> list[str]:
    """The parts a method is composed of, each a group below conf/method."""
    return composer.subgroups("method")


def list_parts(composer: Composer) -> list[str]:
    """The parts of which a method takes any subset: in the baseline they are mappings by choice."""
    try:
        baseline = _section(composer, [f"method={BASELINE}"])
    except ERRORS:
        return []  # without the baseline nothing composes, and the plan reports that
    return [part for part in parts(composer) if isinstance(baseline.get(part), Mapping)]


def is_list_part(composer: Composer, group: str) -> bool:
    """Whether a group takes a list of choices: method/credit=[gradient_adaptive,temporal_decay]."""
    return group in [f"method/{part}" for part in list_parts(composer)]


def chosen(composer: Composer, composed: Composed) -> dict[str, str]:
    """The choice that a composition makes for each part, in the form of Hydra's overrides."""
    single = {
        key.removeprefix("method/"): value
        for key, value in composed.choices.items()
        if key.startswith("method/") and value is not None
    }
    return {**single, **{part: spelled(composed.chosen(f"method/{part}")) for part in list_parts(composer)}}


def unmet(composer: Composer, overrides: Sequence[str], method: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(part, rule, fix) of what the files of a composition need of a part and its composed method does not have.

    The fragments are read file by file: Hydra would merge those of two files for one part into another fragment.
    """
    known = parts(composer)
    for file in composer.compose(overrides).files:
        group, _, choice = file.path.rpartition("/")
        if file.package == "method" and group.removeprefix("method/") in known:
            section = file.content
        elif group == "trainer":
            section = file.content.get("method") or {}
        else:
            continue
        fragments = section.get(schema.ALLOWED) or {}
        for part in [part for part in known if part in fragments]:
            needed = Draft202012Validator(fragments[part])
            if not needed.is_valid(method.get(part)):
                fix = _other_choice(composer, part, needed, f"another {group} than {choice}")
                yield part, f"must be {words(fragments[part])}", fix


def _other_choice(composer: Composer, part: str, needed: Any, other: str) -> str:
    """What to choose where a part is not as it is needed: a file of the part that is, or else `other`."""
    if part in list_parts(composer):
        return f"choose method/{part}=[], or {other}" if needed.is_valid({}) else f"choose {other}"
    paths = {name: f"method/{part}/{name}" for name in composer.options(f"method/{part}")}
    good = [name for name, path in paths.items() if needed.is_valid(composer.content(path).get(part))]
    return f"choose {'one of ' if len(good) > 1 else ''}method/{part}={', '.join(good)}, or {other}"


def _section(composer: Composer, overrides: Sequence[str]) -> dict[str, Any]:
    return schema.strip(composer.compose(overrides).tree["method"])


def combine(
    composer: Composer, methods: Sequence[str], where: str, at: str, problems: Diagnostics
) -> tuple[list[str], dict[str, tuple[Any, str]]] | None:
    """Overrides of groups, and values with the method that sets each, that compose all the methods at once.

    None (and a problem) if they exclude each other. The methods exist.
    """
    if len(methods) == 1:
        return [f"method={methods[0]}"], {}
    baseline = chosen(composer, composer.compose([f"method={BASELINE}"]))
    subsets: dict[str, set[str]] = {part: set() for part in list_parts(composer)}
    taken: dict[str, tuple[Any, str]] = {"method.name": ("+".join(methods), methods[0])}
    excluding: dict[tuple[str, str], list[tuple[str, Any, Any]]] = {}
    for method in methods:
        choices = chosen(composer, composer.compose([f"method={method}"]))
        bare = _section(composer, [f"method={BASELINE}", *(f"method/{part}={one}" for part, one in choices.items())])
        values = dict(leaves(prune(bare, _section(composer, [f"method={method}"]))))
        for part, subset in subsets.items():
            subset.update(name for name in choices.pop(part).strip("[]").split(",") if name)
        own = {f"method/{part}": choice for part, choice in choices.items() if choice != baseline.get(part)}
        # What the file sets itself, beyond what its parts bring.
        own |= {f"method.{key}": value for key, value in values.items() if key != "name"}
        for key, value in own.items():
            other, owner = taken.setdefault(key, (value, method))
            if other != value:
                excluding.setdefault((owner, method), []).append((key, other, value))
    for (owner, method), both in excluding.items():
        one, two = (" and ".join(f"{key}={pair[side]}" for key, *pair in both) for side in (0, 1))
        has = f"conf/method/{owner}.yaml has {one}, conf/method/{method}.yaml has {two}"
        fix = f"remove {owner} or {method} from the list"
        problems.add(where, at, shown(list(methods)), f"these methods exclude each other: {has}", fix)
    if excluding:
        return None
    overrides = [
        f"method={BASELINE}",
        *(f"{key}={choice}" for key, (choice, _) in taken.items() if "/" in key),
        *(f"method/{part}={spelled(subset)}" for part, subset in subsets.items()),
    ]
    return overrides, {key: value for key, value in taken.items() if "/" not in key}
