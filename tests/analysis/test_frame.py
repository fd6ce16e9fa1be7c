"""The DataFrame of an experiment, and the notebook of the docs that uses it."""

import json
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.data.sweep import read_sweep
from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import RunState
from tests.analysis.conftest import reported
from tests.launcher.made import METRIC, make_plan, make_run

NOTEBOOK = Path(__file__).parents[2] / "docs" / "frame.ipynb"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two groups with two seeds: one run shared by both groups, one unfinished, one without a folder."""
    make_run(tmp_path, "a0", RunState.DONE, steps=4, value=0.25)
    make_run(tmp_path, "b0", RunState.RUNNING, steps=2, value=0.5)
    make_plan(tmp_path, "study", {"A": ["a0", "a1"], "B": ["b0", "a0"]})
    plan = json.loads((tmp_path / "study" / "plan.json").read_text())
    plan["groups"] = {"A": {}, "B": {"label": "ppo-b"}}
    plan["runs"][0]["factors"] = {"beta": 0.1}
    (tmp_path / "study" / "plan.json").write_text(json.dumps(plan))
    return tmp_path / "study"


def test_a_frame_has_a_row_for_each_run_and_step(experiment):
    with metrics_path(run_folder(experiment.parent, "b0")).open("a") as log:
        log.write('{"step": 3, "attempt": 1, "time": 1e9, "own/metric": 7}\n')
    frame = analysis.frame(experiment)
    assert frame.groupby(["group", "run"])["step"].max().to_dict() == {("A", "a0"): 4, ("B", "b0"): 3, ("B", "a0"): 4}
    assert list(frame.columns[:7]) == ["run", "group", "label", "seed", "state", "beta", "step"]
    assert frame[METRIC].count() == 4 + 2 + 4 and frame["own/metric"].dropna().tolist() == [7]
    assert frame.groupby("group")["beta"].nunique().to_dict() == {"A": 1, "B": 0}
    assert set(frame[frame.run == "b0"]["state"]) == {"running"}
    assert frame.groupby("group")["label"].unique().map(list).to_dict() == {"A": ["A"], "B": ["ppo-b"]}


@pytest.mark.parametrize(("inside", "place"), [("study", "."), ("study/report", ".."), ("elsewhere", "link")])
def test_a_folder_has_its_runs_by_any_of_its_paths(experiment, monkeypatch, inside, place):
    for name in ("study/report", "elsewhere"):
        (experiment.parent / name).mkdir()
    (experiment.parent / "elsewhere" / "link").symlink_to(experiment)
    monkeypatch.chdir(experiment.parent / inside)
    assert analysis.frame(place).equals(analysis.frame(experiment)) and len(analysis.frame(place)) == 10
    assert reported(Path(place)).printed.splitlines()[:-1] == reported(experiment).printed.splitlines()[:-1]
    assert read_sweep(Path(place)).place == "multirun/study"
    assert {*pd.read_csv(experiment / "report" / "tables" / "runs.csv")["label"]} == {"A", "ppo-b"}


def test_a_folder_without_a_plan_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no plan\.json; give the folder of an experiment"):
        analysis.frame(tmp_path)


@pytest.mark.parametrize("place", [".", "docs"])
def test_the_notebook_runs(experiment, monkeypatch, place):
    (experiment.parent / "rlsweep.toml").touch()
    (experiment.parent / "docs").mkdir()
    monkeypatch.chdir(experiment.parent / place)
    names: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]).replace("multirun/quickstart", "study"), names)
    assert isinstance(names["curves"], pd.DataFrame) and names["curves"].loc[1, "A"] == 0.25
    assert names["late"].loc["B"].dropna().to_dict() == {1: 0.25}
