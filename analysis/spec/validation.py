"""What all sections of a configuration have in common as pydantic models, and what is wrong with one, as records.

`explain` turns pydantic's errors into records of one format: key, value, the rule that holds there, and a fix. It reads
the rule from the model's JSON Schema, which docs/schemas publishes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

NO_SUCH_KEY = "no such key"
_MOST = 20  # objections in a message
APART = re.compile(r"[\s|]")  # no part of a metric's key, whatever another tool calls it
_OWN_METRIC = "[a-z_]+(/[A-Za-z0-9_@]+)+"  # the keys that the trainer writes
_BOUNDS = {
    "exclusiveMinimum": "above {}",
    "minimum": "{} or more",
    "exclusiveMaximum": "below {}",
    "maximum": "{} or less",
    "multipleOf": "a multiple of {}",
    "minLength": "of {} characters or more",
    "pattern": "matching {}",
}
_TYPES = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}

_SAYS_MORE = {"$ref", "properties", "additionalProperties", "description"}

Item = TypeVar("Item")
#: A list in YAML, a tuple in the model.
Listed = Annotated[tuple[Item, ...], Field(strict=False)]


class BadPlan(ValueError):
    """A folder without a plan to report on, or a plan that asks for something unknown; the message names the file and
    the fix."""


class Section(BaseModel):
    """A section of a configuration. It refuses unknown keys and converts no value: "3" is not a number, and 3.0 is not
    an integer."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_by_name=True)


@dataclass(frozen=True)
class Context:
    """What a validation knows beside the section.

    groups: those of the plan, a mapping where it has their labels; None where they are not known. own_metrics: whether
    each metric must be one that the trainer writes, and not one of an imported run. written: the metrics that the runs
    of each group will write, None where that is not known; unwritten: of a metric that none writes, the rule and the
    fix. cells: the levels of the factors of each run, by label; None where they are not known. sources: from which
    policies each group draws its responses; None where that is not known.
    """

    groups: Collection[str] | None = None
    baseline: str | None = None
    own_metrics: bool = False
    written: Mapping[str, Collection[str]] | None = None
    unwritten: Callable[[str], tuple[str, str]] | None = None
    cells: Sequence[tuple[tuple[str, Any], ...]] | None = None
    sources: Mapping[str, Collection[str]] | None = None

    def group(self, called: str) -> str:
        """The name of the group that has this name, or else this label. Raises a refusal if none has."""
        if self.groups is None or called in self.groups:
            return called
        entries = self.groups.items() if isinstance(self.groups, Mapping) else ()
        labels: dict[str, str] = {
            of["label"]: group for group, of in entries if isinstance(of, Mapping) and "label" in of
        }
        if called not in labels:
            known = list(labels or self.groups)
            raise refusal(f"must be one of {', '.join(known)}", closest(called, known, otherwise="name one of them"))
        return labels[called]

    def lacking(self, metric: str) -> list[str]:
        """The groups that will not write a metric; none where that is not known."""
        return [group for group, metrics in (self.written or {}).items() if metric not in metrics]


def context_of(info: ValidationInfo) -> Context:
    """The context that a section is validated with."""
    return info.context if isinstance(info.context, Context) else Context()


# ---------------------------------------------------------------- types of values


def check_metric(key: str, info: ValidationInfo) -> str:
    context, name = context_of(info), APART.sub("_", key)
    if not (re.fullmatch(_OWN_METRIC, key) if context.own_metrics else key and key == name):
        formula = re.search(r"\||\s[*/+-]", key)  # of metrics, where one alone is asked for
        fix = {} if context.own_metrics or not key or formula else {"fix": f"write {name}"}
        raise PydanticCustomError("metric", "not a metric's key", fix)
    if context.written and context.unwritten and len(context.lacking(key)) == len(context.written):
        raise refusal(*context.unwritten(key))
    return key


def check_written(key: str, group: str, info: ValidationInfo) -> None:
    """Raise a refusal if a group will not write a metric that it is asked for."""
    if group in context_of(info).lacking(key):
        raise refusal(f"group {group} does not write {key}", "name a metric that its method writes, or another group")


METRIC_SCHEMA = {
    "type": "string",
    "pattern": f"^{_OWN_METRIC}$",
    "description": "a metric's key, such as actor/grad_norm",
}
Metric = Annotated[str, AfterValidator(check_metric), WithJsonSchema(METRIC_SCHEMA)]


def each_once(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """The items. Raises a refusal that names an item which occurs twice."""
    twice = next((item for number, item in enumerate(items) if item in items[:number]), None)
    if twice is not None:
        raise refusal(f"{twice} is named twice", "name each once")
    return items


#: A list that names nothing twice.
Distinct = Annotated[Listed[Item], AfterValidator(each_once), Field(json_schema_extra={"uniqueItems": True})]
Pair = Annotated[Distinct[Item], Field(min_length=2, max_length=2)]


# ---------------------------------------------------------------- what is wrong


#: The value of an objection where the key alone says it.
KEY_ALONE: Any = ...


@dataclass(frozen=True)
class Objection:
    """What is wrong with a key: its value, what is allowed (`rule`), and the fix. file: the one to correct, or `command
    line`; None: whatever set the key."""

    key: str
    value: Any
    rule: str
    fix: str
    file: str | None = None

    @property
    def why(self) -> str:
        """The key, its value and the rule."""
        value = str(self.value) if isinstance(self.value, PurePath) else repr(self.value)
        return f"{self.key}{'' if self.value is KEY_ALONE else f' = {value}'}: {self.rule}"

    def __str__(self) -> str:
        return f"{'' if self.file is None else f'{self.file}: '}{self.why}. Fix: {self.fix}"


class Diagnostics(list[Objection]):
    """Collects objections, so that a user sees all of them at once."""

    def add(self, key: str, value: Any, rule: str, fix: str, file: object = None) -> None:
        """Add an objection; the arguments are those of Objection."""
        self.append(Objection(key, value, rule, fix, None if file is None else str(file)))

    def raise_any(self, error: type[BadPlan] = BadPlan) -> None:
        """Raise this error if there are objections, with the first of them."""
        if self:
            more = [f"and {len(self) - _MOST} more"] if len(self) > _MOST else []
            raise error("\n".join([*map(str, self[:_MOST]), *more]))


def refusal(rule: str, fix: str = "give a value that this rule allows", shown: bool = True) -> PydanticCustomError:
    """The error that a validator raises for its value; rule and fix are those of the objection; shown:
    whether its value is the matter, and not the key itself."""
    return PydanticCustomError("refusal", "{rule}", {"rule": rule, "fix": fix, "shown": shown})


def refusals(errors: Iterable[tuple[tuple[str, ...], Any, PydanticCustomError]]) -> ValidationError:
    """The error that a validator raises for several values below its own: (location below it, value, error) of each."""
    return ValidationError.from_exception_data(
        "refusals", [InitErrorDetails(type=error, loc=location, input=value) for location, value, error in errors]
    )


def closest(name: str, names: Sequence[str], at: str = "", otherwise: str = "remove it") -> str:
    """The fix for a name that is not among those allowed."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"write {at}{close[0]}" if close else otherwise


def counted(n: int, noun: str) -> str:
    """1 seed, 3 seeds."""
    return f"{n} {noun if n == 1 else noun + 's'}"


def some(names: Sequence[str], most: int, between: str = ", ", last: str = " and ") -> str:
    """The first of some names, and how many more there are."""
    more = f"{last}{len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more or "none"


def words(schema: Mapping[str, Any]) -> str:
    """A fragment of JSON Schema in words: a number above 0."""
    if "properties" in schema:
        return f"a mapping of {', '.join(schema['properties'])}"
    if "description" in schema:
        return str(schema["description"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "anyOf" in schema:
        return " or ".join(map(words, schema["anyOf"]))
    kind = _TYPES.get(str(schema.get("type")), str(schema.get("type", "a value")))
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    return " ".join([kind, " and ".join(bounds)]).strip()


def objections(
    model: type[BaseModel], section: Any, at: str, context: Context | None = None, file: str | None = None
) -> Diagnostics:
    """Everything that is wrong with a section; at: its key, "" for a whole file."""
    try:
        model.model_validate(section, context=context)
    except ValidationError as error:
        return explain(error, model, at, file)
    return Diagnostics()


def explain(error: ValidationError, model: type[BaseModel], at: str, file: str | None = None) -> Diagnostics:
    """Every objection of a validation of the model."""
    whole, errors = model.model_json_schema(), error.errors()
    by_text = {}  # each alternative of a value has its own error, with one text
    for detail in errors:
        kind, location = detail["type"], detail["loc"]
        below = [other for other in errors if other is not detail and other["loc"][: len(location)] == location]
        if kind != "too_short" or not below:  # else it has enough items, and some are refused
            objection = _objection(whole, at, kind, location, detail["input"], detail.get("ctx") or {})
            by_text[str(objection)] = replace(objection, file=file)
    return Diagnostics(by_text.values())


def _objection(
    whole: Mapping[str, Any], at: str, kind: str, location: Sequence[str | int], given: Any, context: Mapping[str, Any]
) -> Objection:
    key, fragment = at, _resolved(whole, whole)
    above = fragment
    for number, step in enumerate(location):
        unknown = kind == "extra_forbidden" and number == len(location) - 1
        if step == "[key]":
            fragment = above
        elif "discriminator" in fragment:  # pydantic names the chosen alternative in the location
            fragment = _resolved(whole, {"$ref": fragment["discriminator"]["mapping"][step]})
        elif "anyOf" in fragment and isinstance(step, str) and not unknown and not _below(fragment, step):
            continue  # so it does here, where the value is refused as a whole
        else:
            key += f"[{step}]" if isinstance(step, int) else f".{step}" if key else str(step)
            above, fragment = fragment, _resolved(whole, _below(fragment, step))
    needed = words(fragment)
    if kind == "refusal":
        value = given if context["shown"] and given not in (None, ()) else KEY_ALONE
        return Objection(key, value, context["rule"], context["fix"])
    if kind == "extra_forbidden":
        names = [name for option in (above, *above.get("anyOf", ())) for name in option.get("properties", ())]
        otherwise = f"remove it, or use one of {', '.join(names)}"
        fix = closest(str(location[-1]), names, key.removesuffix(str(location[-1])), otherwise)
        return Objection(key, given, NO_SUCH_KEY, fix)
    if kind == "missing":
        return Objection(key, KEY_ALONE, "a value is required", f"give {needed}")
    if kind.startswith("union_tag"):
        name, kinds = fragment["discriminator"]["propertyName"], list(fragment["discriminator"]["mapping"])
        tag, needed = given.get(name), words({"enum": kinds})
        fix = closest(str(tag), kinds, otherwise=f"give {needed}")
        return Objection(f"{key}.{name}", tag, f"must be {needed}", fix)
    if "properties" in fragment and not isinstance(given, Mapping):
        below = ", ".join(f"{key}.{name}" for name in fragment["properties"])
        return Objection(key, given, "must be a mapping", f"set one of {below}")
    value, fix = KEY_ALONE if "[key]" in location else given, context.get("fix", f"give {needed}")
    return Objection(key, value, f"must be {needed}", fix)


def _resolved(whole: Mapping[str, Any], fragment: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fragment that a reference names; of an optional value, the alternative to null where it says more."""
    while True:
        described = {"description": fragment["description"]} if "description" in fragment else {}
        options = [option for option in fragment.get("anyOf", ()) if option.get("type") != "null"]
        if "$ref" in fragment:
            named = whole["$defs"][fragment["$ref"].rpartition("/")[2]]
            if "enum" in named:  # its values say more than the docstring of its class
                named = {key: value for key, value in named.items() if key != "description"}
            fragment = {**named, **described}
        elif len(options) == 1 and _SAYS_MORE & {*options[0], *described}:
            fragment = {**options[0], **described}
        else:
            return fragment


def _below(fragment: Mapping[str, Any], step: str | int) -> Mapping[str, Any]:
    """The schema of an entry: of a mapping by its key, of a list by its place."""
    for option in (fragment, *fragment.get("anyOf", ())):
        named = option.get("properties", {})
        entries = (option.get("additionalProperties"), *option.get("patternProperties", {}).values())
        items = option.get("items") if isinstance(step, int) else None
        several = next((entry for entry in (items, *entries) if entry), None)
        if step in named or isinstance(several, Mapping):
            return dict(named.get(step) or several or {})
    return {}
