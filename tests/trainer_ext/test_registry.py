"""The registry of a method's parts: its choices, their settings, and what is refused."""

from __future__ import annotations

import importlib
import inspect
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import pytest
import torch
import yaml

from launcher.planning import schema
from tests.configuration import tree_of
from tests.trainer_ext.batches import batch
from tests.trainer_ext.conftest import CONF, METHODS
from tests.trainer_ext.subjects import PROXY
from tests.waiting import until
from trainer_ext import registry
from trainer_ext.backends.in_process import trainer  # noqa: F401  (its parts)
from trainer_ext.methods import credit, policy_loss
from trainer_ext.registry import Part
from trainer_ext.scoring import tasks


def section(method):
    """The section of a method as a run has it, of which none refers to another."""
    return schema.strip(tree_of(f"method={method}"))["method"]


@pytest.mark.parametrize("part", [*registry.SINGLE, registry.credit], ids=lambda part: part.name)
def test_the_files_of_a_part_hold_its_choices_with_all_their_settings(part):
    """A default in the signature of a public function is for calls by hand; it is the file's."""
    choices = set()
    for path in (CONF / "method" / part.name).glob("*.yaml"):
        content = yaml.safe_load(path.read_text())
        about = ("allowed", "writes", "requires")
        content = {key: value for key, value in content.items() if key not in about}
        chosen = content.pop(part.name)
        (name, values), function = (chosen, content), None
        if part is registry.credit:
            ((name, values),) = chosen.items()
            values = {key: value for key, value in values.items() if key not in about}
            function = getattr(credit, name)
        choices.add(name)
        section = {"credit": {name: values}} if part is registry.credit else {part.name: name, **values}
        (choice,) = part.each(section["credit"]) if part is registry.credit else [part.choice(section)]
        assert set(values) == {key for key, setting in part.get(name).keys.items() if setting in choice.settings}
        for parameter in inspect.signature(function or part.get(name).function).parameters.values():
            if parameter.default not in (inspect.Parameter.empty, None) and parameter.name in choice.settings:
                assert parameter.default == choice.settings[parameter.name], (path, parameter)
    assert choices == set(part)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_settings_of_its_choices_and_no_others(method):
    registry.check(section(method))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gama": 1.0}, r"method\.gama = 1\.0: nothing reads this key; .*gamma.* Fix: write gamma"),
        ({"trust_region": "clipp"}, r"method\.trust_region = clipp: must be one of asymmetric.* Fix: write clip"),
        ({"trust_region": "gaussian"}, r"method\.sigma, method\.differentiable: missing; trust_region=gaussian needs"),
        ({"credit": {"temporal": {}}}, r"method\.credit = temporal: must be one of .* Fix: write temporal_decay"),
        ({"credit": {"gradient_adaptive": {"tau": 1.0}}}, r"method\.credit\.gradient_adaptive\.norm: missing"),
        ({"credit": {"gradient_adaptive": {"tau": 1.0, "norm": "proxy", "nrom": "proxy"}}},
         r"gradient_adaptive\.nrom = proxy: nothing reads .* norm, tau\. Fix: write norm"),
    ],
)  # fmt: skip
def test_what_no_choice_reads_and_what_one_lacks_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        registry.check({**section("bnto_minimal"), **changes})


def test_a_setting_whose_default_is_none_may_be_absent():
    part = Part("shape")
    part("round")(lambda radius, colour=None: (radius, colour))
    assert part.choice({"shape": "round", "radius": 2})() == (2, None)
    assert part.choice({"shape": "round", "radius": 2, "colour": "red"})() == (2, "red")
    with pytest.raises(ValueError, match=r"method\.radius: missing; shape=round needs radius, colour"):
        part.choice({"shape": "round"})
    with pytest.raises(ValueError, match=r"method\.shape: it is missing\. Fix: set it to one of round"):
        part.choice({})


def test_two_functions_of_one_name_are_refused():
    part = Part("shape")
    part("round")(test_a_setting_whose_default_is_none_may_be_absent)
    part("round")(test_a_setting_whose_default_is_none_may_be_absent)  # its module was imported again
    with pytest.raises(ValueError, match=r"method\.shape=round is registered by .*absent and by .*refused"):
        part("round")(test_two_functions_of_one_name_are_refused)


@pytest.fixture
def own_parts(monkeypatch):
    """Registries that forget after the test what was registered in it."""
    for part in (registry.trust_region, registry.credit):
        monkeypatch.setattr(part, "_entries", dict(part._entries))


def test_a_trust_region_of_ones_own_needs_a_function_and_reports_its_metric(own_parts):
    @registry.trust_region("own", metrics=lambda ratio, advantages, power: {"own/power": ratio**power})
    def own(ratio, advantages, power):
        return -(ratio**power) * advantages

    b = batch(6)
    method = {"smoothing": "none", "ratio": "token", "trust_region": "own", "power": 0.5}
    settings = SimpleNamespace(**policy_loss.policy_loss_config(method))
    config = SimpleNamespace(policy_loss=settings, global_batch_info={})
    loss, metrics = policy_loss.policy_loss(b.reference, b.reference + b.log_ratio, b.advantages, b.mask, config=config)
    powers = (0.5 * b.log_ratio).exp()
    assert float(loss) == pytest.approx(float((-powers * b.advantages)[b.mask].mean()))
    assert set(metrics) == {"own/power", "actor/ppo_kl"}
    assert metrics["own/power"] == pytest.approx(float(powers[b.mask].mean()))


def test_a_credit_of_ones_own_needs_a_function(own_parts):
    @registry.credit("own")
    def own(logp, mask, collision, power):
        return mask * logp.exp() ** power, {"own/power": power}

    b = batch(6)
    weights, metrics = credit.credit_weights({"own": {"power": 2.0}, **PROXY}, b.logp, b.mask, b.logp)
    torch.testing.assert_close(weights, (2 * b.logp).exp() * credit.gradient_adaptive(b.logp, b.mask, 0.7))
    assert metrics["own/power"] == 2.0 and len(metrics) == 3


def test_an_unknown_task_names_the_known_ones():
    with pytest.raises(ValueError, match=r"one of .*expression, file, gsm8k, .*sorting.* write sorting"):
        tasks.get("sort")


BEFORE = """
import pathlib, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.01)
"""
TASK = """
from trainer_ext.scoring.tasks import task
@task("slow")
def rows(task): return []
"""
SCORE = "def compute_score(*_): return 1.0"


@pytest.mark.parametrize("text", [BEFORE + TASK + SCORE, TASK + BEFORE + SCORE], ids=["unregistered", "registered"])
@pytest.mark.parametrize("module", [f"{tasks.__name__}.slow", "slow"], ids=["included", "of another package"])
def test_threads_that_ask_for_a_task_wait_for_the_one_that_imports_it(tmp_path, monkeypatch, module, text):
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path)] if "." in module else tasks.__path__)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tasks.task, "_entries", dict(tasks.task._entries))
    monkeypatch.setattr(registry, "load", lambda group: importlib.import_module(module))  # as an entry point's
    (tmp_path / "slow.py").write_text(text.format(go=str(tmp_path / "go")))
    try:
        with ThreadPoolExecutor() as threads:
            first = threads.submit(tasks.reward, {"name": "slow"})
            until(lambda: module in sys.modules or first.done())
            second = threads.submit(tasks.reward, {"name": "slow"})
            wait([second], timeout=0.1)
            (tmp_path / "go").touch()
            assert first.result() is second.result() and first.result()() == 1.0
    finally:
        sys.modules.pop(module, None)
