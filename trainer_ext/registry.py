"""The choices of each part of a method, registered by decorator, and the settings that each choice reads.

    @trust_region("tanh", metrics=_tanh_metrics)
    def tanh(ratio, advantages, width): ...

A method (conf/method) names a choice for each part, and holds the settings of these choices: the parameters of their
functions after the inputs of the part. Values stand in YAML alone; a missing or an unknown key is refused. Modules of
other installed packages are imported by their entry points once a name is not known (docs/extending.md).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from trainer_ext.objection import Objection

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def load(group: str) -> None:
    """Import what the installed packages' entry points of a group name. ImportError names one that fails."""
    for entry in entry_points(group=group):
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else entry.value
            rule = f"its entry point {entry.name} of {group} cannot be loaded: {error}"
            raise ImportError(f"{package}: {rule}") from error


@dataclass(frozen=True)
class Choice:
    """A choice of a part with its settings, by the name of the parameter: call it with the inputs of the part."""

    name: str
    settings: Mapping[str, Any]
    function: Callable[..., Any]
    report: Callable[..., Any] | None

    def __call__(self, *inputs: Any) -> Any:
        return self.function(*inputs, **self.settings)

    def metrics(self, *inputs: Any) -> dict[str, Any]:
        """What the choice reports; empty without a function for it."""
        return dict(self.report(*inputs, **self.settings)) if self.report else {}


@dataclass(frozen=True)
class _Entry:
    function: Callable[..., Any]
    report: Callable[..., Any] | None
    keys: Mapping[str, str]  # of the settings: key in the section -> parameter
    optional: Sequence[str]  # parameters that the section may leave out


class Part:
    """The choices of one part. inputs: how many arguments each function takes before its settings.

    section: where the settings are; group: the entry points that may register more choices.
    """

    def __init__(self, name: str, inputs: int = 0, section: str = "method", group: str = "rlsweep.methods"):
        self.name, self.inputs, self._section, self._group = name, inputs, section, group
        self._entries: dict[str, _Entry] = {}

    def __call__(
        self, name: str, metrics: Callable[..., Any] | None = None, prefix: str = ""
    ) -> Callable[[Function], Function]:
        """Decorator: register a choice. Its settings are the parameters after the inputs; None as default: optional.

        metrics: takes the same settings and returns what is reported; prefix: put before the settings' keys in the
        section, if the parameters' names alone would be ambiguous. ValueError: another function has the name.
        """

        def register(function: Function) -> Function:
            present = self._entries.get(name)
            if present and _source(present.function) != _source(function):
                both = f"{_source(present.function)} and by {_source(function)}"
                raise ValueError(f"{self._section}.{self.name}={name} is registered by {both}")
            parameters = list(inspect.signature(function).parameters.values())[self.inputs :]
            optional = [p.name for p in parameters if p.default is None]
            self._entries[name] = _Entry(function, metrics, {prefix + p.name: p.name for p in parameters}, optional)
            return function

        return register

    def declare(self, name: str, *settings: str, optional: Sequence[str] = (), prefix: str = "") -> None:
        """Register a choice without a function, which the code that runs the part knows by name."""
        keys = {prefix + setting: setting for setting in (*settings, *optional)}
        self._entries[name] = _Entry(lambda *_, **__: None, None, keys, optional)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def get(self, name: str) -> _Entry:
        """What is registered under a name. Objection: nothing is."""
        if name not in self._entries:
            load(self._group)
        if name not in self._entries:
            fix = instead(name, self, "use one of these, or register it (docs/extending.md)")
            raise Objection(f"{self._section}.{self.name}", name, f"must be one of {', '.join(self)}", fix)
        entry = self._entries[name]
        if entry.function.__module__ in sys.modules:
            importlib.import_module(entry.function.__module__)  # waits for a thread that is still executing it
        return entry

    def choice(self, section: Mapping[str, Any]) -> Choice:
        """The choice that a method makes for this part. Objection: its name is unknown, or a setting is missing."""
        if self.name not in section:
            fix = f"set it to one of {', '.join(self)}"
            raise Objection(f"{self._section}.{self.name}", None, "it is missing", fix)
        return self._choice(section[self.name], section, self._section)

    def each(self, chosen: Mapping[str, Mapping[str, Any]]) -> list[Choice]:
        """The choices of a part of which a method takes any number, by name, each with a section of its own.

        Objection: a name is unknown, a setting is missing or unknown.
        """
        for name, section in chosen.items():
            _refuse_unknown(section, self.get(name).keys, f"{self._section}.{self.name}.{name}")
        return [self._choice(name, s, f"{self._section}.{self.name}.{name}") for name, s in sorted(chosen.items())]

    def checked(self, name: str, settings: Mapping[str, Any], declared: Iterable[str]) -> Choice:
        """A choice of a single part with its settings. Objection: one is missing, or one of those declared unknown."""
        _refuse_unknown(dict.fromkeys(declared), self.get(name).keys, self._section)
        return self._choice(name, settings, self._section)

    def _choice(self, name: str, section: Mapping[str, Any], at: str) -> Choice:
        entry = self.get(name)
        keys = entry.keys
        if missing := [key for key in keys if key not in section and keys[key] not in entry.optional]:
            others = [key for key in section if key not in keys]
            renamed = [f"write {key} in place of {close}" for key in missing if (close := _close(key, others))]
            rule = f"missing; {self.name}={name} needs {', '.join(keys)}"
            fix = " and ".join(renamed) or f"set {' and '.join(missing)}"
            raise Objection(", ".join(f"{at}.{key}" for key in missing), None, rule, fix)
        settings = {setting: section[key] for key, setting in keys.items() if key in section}
        return Choice(name, settings, entry.function, entry.report)


#: The parts, with what their functions take before the settings and what they give; (B, T) over tokens of B responses.
sampler = Part("sampler")  # known to trainer_ext/sampling/proposal.py
alpha = Part("alpha")  # known to trainer_ext/sampling/alpha.py
target = Part("target", inputs=1)  # what a target is made from -> the folder of a model, or None
drafting = Part("drafting")  # -> how many tokens to draft, or None
advantage = Part("advantage")  # -> verl's AlgoConfig, which names an estimator of verl's registry
credit = Part("credit", inputs=3)  # logp, mask, collision -> weights (B, T) and metrics
control = Part("control")  # -> settings of a controller, or None
weights = Part("weights", inputs=2)  # ratio to where tokens were drawn from, valid tokens -> weights (B, T)
smoothing = Part("smoothing", inputs=2)  # ratio, mask -> ratio (B, T); metrics take the ratios before and after
ratio = Part("ratio", inputs=3)  # ratio, log_ratio, mask -> ratio (B, T) and metrics
trust_region = Part("trust_region", inputs=2)  # ratio, advantages -> loss (B, T); metrics take the same, give (B, T)
loss = Part("loss", inputs=1)  # verl's ActorConfig -> a loss under verl's signature, or None
SINGLE = (sampler, alpha, target, drafting, advantage, control, weights, smoothing, ratio, trust_region, loss)
#: The samplers that ask the target policy for each token, beside the policy.
WITH_TARGET = ("target", "geometric")


def models_read(method: Mapping[str, Any]) -> list[str]:
    """The models that read every token while sampling, the policy first."""
    read = {"policy": True, "target": method["sampler"] in WITH_TARGET, "reference": method["alpha"] == "snr_max"}
    return [name for name, is_read in read.items() if is_read]


#: The choices of this project by part, separated by spaces. A plan imports the code of every other choice.
INCLUDED = {
    "sampler": "geometric policy rejection target",
    "alpha": "entropy ess_balance fixed kl_symmetry none snr_max",
    "target": "best_of_n expert high_reward large none reward_tilted",
    "drafting": "adaptive none speculative",
    "advantage": "gae grpo raw verl",
    "credit": "gradient_adaptive temporal_decay",
    "control": "dual kl none",
    "weights": "clipped none normalized raw",
    "smoothing": "ema none",
    "ratio": "sequence_arithmetic sequence_geometric token",
    "trust_region": "asymmetric_clip clip gaussian none",
    "loss": "dpo none policy_gradient sft",
}


def check(method: Mapping[str, Any]) -> None:
    """Objection: a choice of a method is unknown, or a setting is missing, or read by no choice."""
    credit.each(method[credit.name])
    check_parts(method, SINGLE, others=("name", credit.name))


def check_parts(method: Mapping[str, Any], parts: Sequence[Part], others: Iterable[str] = ()) -> None:
    """`check` for a section that has these parts alone; others: keys of it that no part reads."""
    known = {*others, *(part.name for part in parts)}
    known |= {key for part in parts for key in part.get(part.choice(method).name).keys}
    _refuse_unknown(method, known, "method")


def _refuse_unknown(section: Mapping[str, Any], known: Iterable[str], at: str) -> None:
    for key in section:
        if key not in known:
            rule = f"nothing reads this key; those that are read are {', '.join(sorted(known))}"
            raise Objection(f"{at}.{key}", section[key], rule, instead(key, known, "remove it"))


def instead(name: str, names: Iterable[str], otherwise: str) -> str:
    """The fix for a name that does not exist: the one of `names` that was probably meant, or `otherwise`."""
    close = _close(name, names)
    return f"write {close}" if close else otherwise


def _close(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1)), None)


def _source(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
