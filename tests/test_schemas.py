"""The published JSON Schemas are those of the models, and every shipped YAML file that names one is valid by it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.schemas import FOLDER, documents, text

CONF = Path(__file__).parents[1] / "conf"
FILES = sorted(
    path for group in ("experiment", "hypothesis", "cluster", "campaign") for path in (CONF / group).glob("*.yaml")
)


def test_the_published_schemas_are_those_of_the_models():
    published = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert published == {name: text(document) for name, document in documents().items()}, "python -m tests.schemas"
    for document in documents().values():
        Draft202012Validator.check_schema(document)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_file_names_its_schema_and_is_valid_by_it(path):
    (named,) = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", path.read_text(), flags=re.MULTILINE)
    schema = (path.parent / named).resolve()
    assert schema == FOLDER / f"{path.parent.name}.json"
    validator = Draft202012Validator(json.loads(schema.read_text()))
    assert not [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("experiment", {"experiment": {"name": "a", "factor": {}}}),
        ("experiment", {"experiment": {"name": "a", "factors": {"trainer.steps": 3}}}),
        ("experiment", {"analysis": {"alpha": 2}}),
        ("experiment", {"trianer": {"steps": 3}}),
        ("hypothesis", {"H": {"kind": "range", "claim": "x", "group": "A", "metric": "a/b", "lowest": 1}}),
        ("cluster", {"name": "local", "partition": "gpu"}),
        ("tracking", {"wandb": "loud"}),
        ("plan", {"experiment": "a", "command": "", "steps": "3", "analysis": {}, "runs": []}),
    ],
)
def test_a_schema_refuses_what_a_plan_would(name, content):
    assert not Draft202012Validator(documents()[f"{name}.json"]).is_valid(content)


def test_a_file_may_say_a_part_of_what_it_inherits():
    for name, content in {
        "cluster": {"defaults": ["slurm", "_self_"], "partition": "gpu"},
        "experiment": {"experiment": {"groups": {"C2": None}}, "analysis": {"hypotheses": {"H": {"margin": 1}}}},
    }.items():
        assert Draft202012Validator(documents()[f"{name}.json"]).is_valid(content)


def test_a_new_summary_changes_no_schema():
    """In a process of its own, because the models list the summaries that are registered when they are imported."""
    code = """
from analysis.spec.registry import summary
summary("swing", "range of values")(lambda curve: 0.0)
from tests.schemas import FOLDER, documents, text
print([name for name, document in documents().items() if text(document) != (FOLDER / name).read_text()])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parents[1], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
