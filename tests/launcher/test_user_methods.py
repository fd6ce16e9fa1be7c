"""A plan imports the methods of an installed package as its runs do, in a process of its own.

Their tests are in a file that comes late, because they import torch: what forks afterwards takes longer.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import closing

import pytest

from analysis.spec import registry as analysis_registry
from launcher.application.isolated import Ended, Isolated
from tests import registered
from tests.launcher.experiments import make, refusals, refused
from trainer_ext import registry
from trainer_ext.application import preflight

METHOD = """
import torch
from trainer_ext.registry import credit, ratio, trust_region

def _metrics(ratio, advantages, width):
    return {"tanh/saturated": (ratio > width).float(), "row": ratio.sum(1)}

@trust_region("tanh", metrics=_metrics)
def tanh(ratio, advantages, width):
    return -advantages * torch.tanh(ratio / width)

@credit("late")
def late(logp, mask, collision, power):
    return mask ** power, {"late/power": power}

@ratio("halved")
def halved(ratio, log_ratio, mask):
    return ratio / 2, {"halved@1": mask}
"""
FILES = {
    "method/trust_region/tanh": "# @package method\ntrust_region: tanh\nwidth: 0.3\nwrites: {tanh/saturated, row}\n",
    "method/credit/late": "# @package method\ncredit:\n  late:\n    power: 0.3\n    writes: {late/power: null}\n",
    "method/ratio/halved": "# @package method\nratio: halved\nwrites: {halved: null}\n",
}
#: What is wrong in the package: the file, its text, and what stands in its place.
WRONG = [
    ("own.py", "return -advantages", "return (-advantages"),
    ("own.py", "import torch\n", "import toorch\n"),
    ("own.py", "return -advantages", "ratio = ratio.detach(); return -advantages"),
    ("own.py", "return -advantages", "return -advantages[advantages >= 0]"),
    ("own.py", "mask ** power", "1 / 0"),
    ("own.py", "mask ** power", "mask.sum()"),
    ("own.py", "width)", "breadth)"),
    ("credit/late.yaml", "power: 0.3", "pover: 0.3"),
    ("own.py", "(ratio > width).float()", "float((ratio > width).float().mean())"),
    ("own.py", "ratio.sum(1)", "ratio.sum()"),
    ("own.py", "return {", "{"),
    ("own.py", ": power}", ": mask}"),
    ("own.py", '{"late/power": power}', "power"),
    ("own.py", 'mask ** power, {"late/power": power}', "mask ** power"),
    ("own.py", '{"halved@1": mask}', '{"halved": 1.0}'),
    ("own.py", ', {"halved@1": mask}', ""),
    ("own.py", '{"halved@1": mask}', '{"halves@1": mask}'),
    ("trust_region/tanh.yaml", "saturated", "satiated"),
]


@pytest.fixture
def package(tmp_path, conf, monkeypatch):
    """An installed package of two parts, and a folder of configurations with their files."""
    importlib.import_module("torch")  # which each plan's own process would import anew
    registered.put_back(monkeypatch)
    for part in (registry.trust_region, registry.credit, registry.ratio):
        monkeypatch.setattr(part, "_entries", dict(part._entries))
    site = tmp_path / "site"
    (site / "own-1.dist-info").mkdir(parents=True)
    (site / "own-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    (site / "own-1.dist-info/entry_points.txt").write_text("[rlsweep.methods]\nown = own\n")
    (site / "own.py").write_text(METHOD)
    for name, text in FILES.items():
        (conf / f"{name}.yaml").write_text(text)
    monkeypatch.syspath_prepend(str(site))
    with registered.other_packages():
        yield {"own.py": site / "own.py", **{f"{name[7:]}.yaml": conf / f"{name}.yaml" for name in FILES}}


OWN = ["method=c0_grpo", "method/trust_region=tanh", "method/credit=[late]", "method/ratio=halved"]


def test_an_own_package_without_mistakes_is_planned(package, conf):
    assert make(*OWN, conf=conf).runs
    assert "own" not in sys.modules


@pytest.mark.parametrize(("file", "text", "instead"), WRONG)
def test_a_plan_imports_the_methods_that_its_runs_import(package, conf, file, text, instead, worded):
    package[file].write_text(package[file].read_text().replace(text, instead))
    worded(refusals(" ".join(OWN), conf))


@pytest.mark.parametrize("code", ["import os; os._exit(0)", "1 / 0"])
def test_a_package_of_the_report_that_cannot_be_imported_is_refused(package, conf, code, worded):
    points = package["own.py"].parent / "own-1.dist-info/entry_points.txt"
    points.write_text("[rlsweep.analysis]\nown = other\n")
    package["own.py"].with_name("other.py").write_text(f"\n{code}\n")
    analysis_registry.load.cache_clear()  # a test before this one may have loaded the packages that there were
    (line,) = refused("method=c0_grpo", conf=conf)
    worded(line)


def _registered() -> dict[str, str]:
    return {part.name: " ".join(part) for part in (*registry.SINGLE, registry.credit)}


def test_a_choice_that_nobody_registers_is_told_all_others_of_which_those_called_included_are_the_projects(package):
    package["own.py"].write_text(METHOD.replace('"tanh"', '"tan"'))
    regions = "asymmetric_clip clip gaussian none tan"
    with closing(Isolated()) as child:
        with pytest.raises(Ended, match=f"trust_region: must be one of {', '.join(regions.split())}$"):
            child.call(60.0, preflight.check_choice, "trust_region", "tanh", {"width": 0.3}, ["width"], [])
        own = {
            "trust_region": regions,
            "ratio": "halved sequence_arithmetic sequence_geometric token",
            "credit": "gradient_adaptive late temporal_decay",
        }
        assert child.call(60.0, _registered) == {**registry.INCLUDED, **own}
