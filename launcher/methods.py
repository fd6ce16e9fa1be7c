"""Methods composed from parts: what one or several method files choose, as overrides for Hydra.

Several files are combined by taking from each the choices (and values) that differ from the baseline. Two files that
choose differently for one part exclude each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.compose import Composer, plain
from launcher.problem import Problem, shown

BASELINE = "c0_grpo"


def parts(composer: Composer) -> list[str]:
    """The parts a method is composed of, each a group below conf/method."""
    return composer.subgroups("method")


def chosen_parts(composer: Composer, method: str) -> dict[str, str]:
    """The choice that a method file makes for each part."""
    choices = composer.compose([f"method={method}"]).choices
    return {
        key.removeprefix("method/"): value
        for key, value in choices.items()
        if key.startswith("method/") and value is not None
    }


def own_values(composer: Composer, method: str) -> dict[str, Any]:
    """The values that a method file sets itself, beyond what its parts bring."""
    overrides = [
        f"method={BASELINE}",
        *(f"method/{part}={choice}" for part, choice in chosen_parts(composer, method).items()),
    ]
    bare = plain(composer.compose(overrides).config)["method"]
    own = plain(composer.compose([f"method={method}"]).config)["method"]
    return {key: value for key, value in own.items() if key != "name" and (key not in bare or bare[key] != value)}


def combine(
    composer: Composer, methods: Sequence[str], where: str, at: str, problems: list[Problem]
) -> tuple[list[str], dict[str, Any]] | None:
    """Overrides of groups, and values, that compose all the methods at once; None (and a problem) if they exclude.

    The methods exist.
    """
    if len(methods) == 1:
        return [f"method={methods[0]}"], {}
    baseline = chosen_parts(composer, BASELINE)
    choices: dict[str, tuple[str, str]] = {}
    values: dict[str, tuple[Any, str]] = {"name": ("+".join(methods), "")}
    sound = True
    for method in methods:
        wanted: dict[str, Any] = {
            f"method/{part}": choice
            for part, choice in chosen_parts(composer, method).items()
            if choice != baseline.get(part)
        }
        settings = own_values(composer, method)
        for key, value in (*wanted.items(), *settings.items()):
            taken: dict[str, tuple[Any, str]] = choices if key in wanted else values
            other, owner = taken.setdefault(key, (value, method))
            if other != value:
                sound = False
                name = key if key in wanted else f"method.{key}"
                rule = (
                    f"these methods exclude each other: conf/method/{owner}.yaml has {name}={other}, "
                    f"conf/method/{method}.yaml has {name}={value}"
                )
                fix = f"remove {owner} or {method} from the list"
                problems.append(Problem(where, at, shown(list(methods)), rule, fix))
    if not sound:
        return None
    overrides = [f"method={BASELINE}", *(f"{key}={choice}" for key, (choice, _) in choices.items())]
    return overrides, {f"method.{key}": value for key, (value, _) in values.items()}
