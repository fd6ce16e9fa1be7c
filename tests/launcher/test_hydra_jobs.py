"""The jobs of any Hydra program as a plan, held against what Hydra's own loader composes for each of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf

from hydra_plugins.rlsweep import SETTINGS
from launcher.application import KEY, merged
from launcher.config import identity
from launcher.config.hydra_compose import assign
from launcher.errors import InvalidPlan
from launcher.planning.hydra_jobs import Compositions, Jobs, Sweep, checked, jobs
from launcher.worker.hydra_app import NAME


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Typed:
    n: int = 3
    rate: float = 0.5
    color: Color = Color.RED
    folder: Path = Path("x")
    secret: bytes = b"abc"
    table: dict[Color, Path] = field(default_factory=lambda: {Color.RED: Path("y")})
    any: Any = Path("z")


FILES = {
    "config": """
        defaults: [_self_, db: mysql, optim: adam, typed: base, model: mlp, data: image/cifar]
        hydra: {searchpath: ["file://FOLDER/extra"]}
        seed: 0
        lr: 0.1
        name: ${db.name}-${optim.name}-${lr}
        twice: ${name}/${name}
        relative: {a: 1, b: "${.a}", c: "${..lr}"}
        listed: [1, "${lr}", {x: "${db}"}]
        out: ${hydra:runtime.output_dir}
        when: ${now:%s}
        number: ${hydra:job.num}
        missing: ???
        path: data.txt
        chosen: ${by.${db.name}}
        by: {mysql: 1, sqlite: 2}
    """,
    "db/mysql": "name: mysql\nport: 3306",
    "db/sqlite": "name: sqlite\nfile: ${name}.db",
    "optim/adam": "name: adam\nlr: ${lr}",
    "optim/sgd": "name: sgd\nlr: ${lr}\nmomentum: 0.9",
    "extra/model/mlp": "layers: 2",
    "extra/model/cnn": "channels: ${seed}",
    "data/image/cifar": "size: 32",
    "data/text/imdb": "words: 100",
}
PROGRAM: dict[str, Any] = {KEY: NAME, "name": "train", "task": "train.py:main"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, where a program looks for its data."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def compositions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compositions]:
    conf = tmp_path_factory.mktemp("conf")
    for name, text in FILES.items():
        path = conf / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(yaml.safe_load(text.replace("FOLDER", str(conf))), sort_keys=False))
    before = HydraConfig.instance().cfg
    ConfigStore.instance().store(group="typed", name="base", node=Typed)
    with initialize_config_dir(str(conf), version_base=None, job_name="train"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", [], RunMode.MULTIRUN)
        yield Compositions(loader, master, ignore=["when"])
    HydraConfig.instance().cfg = before


def settings(**section: Any) -> Sweep:
    """The section with its defaults."""
    return checked(Sweep, merged({key: SETTINGS[key] for key in Sweep.model_fields}, section), "hydra.sweeper")


def planned(compositions: Compositions, words: Sequence[str], **section: Any) -> Jobs:
    return jobs(compositions, words, settings(**section), PROGRAM)


def as_hydra_composes(compositions: Compositions, overrides: Sequence[str], number: int) -> Any:
    """What the program would read of this job, by Hydra alone; what cannot be read stays as it is written."""
    whole = compositions.whole(overrides)
    OmegaConf.set_readonly(whole.hydra, False)
    OmegaConf.set_struct(whole, False)
    whole.hydra.job.num = number
    HydraConfig.instance().set_config(whole)
    del whole["hydra"], whole["when"], whole["out"]
    return _plain(OmegaConf.to_container(whole, resolve=True, enum_to_str=True))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, (Path, bytes)) else value


@pytest.mark.peer
@pytest.mark.parametrize(
    "words",
    [
        ["seed=0,1", "lr=1e-3,1e-4"],
        ["db=mysql,sqlite", "optim=sgd", "lr=1,2"],
        ["relative.a=5,6", "db.name=mysql,sqlite"],
        ["typed.color=RED,BLUE", "typed.rate=1,2.5"],
        ["typed.folder=a,b/c", "lr='${typed.folder}',0", "path=${typed.secret}"],
        ["+new=1,2", "~by.sqlite", "seed=range(2)"],
        ["lr='${relative.a}',7", "seed=1"],
        ["typed.n=1,2", "lr='${typed.n}',0"],
        ["lr=${typed.n},0", "typed.n=1,2"],
        ["path=z${typed.n},'a \"${typed.n}\" b'", "typed.n=1,2"],
        ["path='\\${typed.n}',\"\\\\${typed.n}\"", "typed.n=1,2"],
        ["seed=${typed.n},0", "lr=${seed},1", "typed.n=1,2"],
        ["relative.a=${lr},${..lr}", "lr=1,2"],
        ["path='${by.${db.name}}'", "db.name=mysql,sqlite", "by.mysql=3,4"],
        ["listed=[${lr},{y:'${lr}'}]", "relative={a:${lr}},{a:1}", "lr=1,2"],
        ["+new=a${lr}", "++more.deep=${new},0", "lr=1,2"],
        ["relative={a:1},{a:2}", "listed=[1],[2,3]"],
        ["relative=5,null", "lr=1,2"],
        ["missing=1,???", "seed=1,2"],
        ["+optim.extra=a,b", "optim=sgd", "seed=1,2"],
        ["model=mlp,cnn", "seed=1,2", "data=image/cifar,text/imdb"],
        ["lr=1,2", "relative.a=1,2", "relative={a:3},{c:4}"],
        ["relative={a:3},{c:4}", "relative.a=1,2"],
        ["optim.lr=1,2", "++optim.lr=3,${seed}", "optim=adam,sgd"],
        ["listed.0=5,6", "lr=1,2"],
        [],
    ],
)
def test_every_job_is_what_hydra_composes(compositions: Compositions, words: list[str]) -> None:
    made = planned(compositions, words)
    assert len(made.jobs) == len(made.entries) > 0
    for job in {job.run: job for job in reversed(made.jobs)}.values():  # the first of each run
        frozen = made.runs[job.run].config
        own = as_hydra_composes(compositions, job.overrides, frozen["start"]["number"])
        assert {key: value for key, value in frozen["config"].items() if key != "out"} == own, job.overrides


def test_jobs_that_differ_in_plain_values_alone_are_composed_once(compositions: Compositions) -> None:
    words = ["lr=range(20)", "optim={name:x}", "seed=0,1", "model.layers=1,2", "missing=1,2"]
    assert len(planned(compositions, words).bases) == 1


def test_jobs_come_in_the_order_of_hydras_own_sweeper(compositions: Compositions) -> None:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    words = ["db=mysql,sqlite", "lr=0.1,0.2", "seed=1,2", "lr=3,4", "+a=b"]
    (batch,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(words), None)
    assert [list(job.overrides) for job in planned(compositions, words).jobs] == batch


@pytest.mark.parametrize("words", [["lr=1e-3,2"], ["db=mysql,sqlite", "typed.color=BLUE"], ["listed=[1.0]"]])
def test_a_frozen_job_has_the_identity_that_its_plan_says(compositions: Compositions, words: list[str]) -> None:
    Path("data.txt").write_text("one")
    for run in planned(compositions, words).runs.values():
        frozen = {"identity": {"version": identity.VERSION, "hash": run.hash}, "base": run.base, "id": run.id}
        identity.verify(yaml.safe_load(yaml.safe_dump({**frozen, **json.loads(json.dumps(run.config))})), run.id)


def test_what_changes_no_number_changes_no_run(compositions: Compositions, folder: Path) -> None:
    def ids(*words: str, **section: Any) -> list[str]:
        return [job.run for job in planned(compositions, words, **section).jobs]

    assert ids("lr=1e-4", "~path", ignore=["path", "db.url", "data"]) != ids("lr=1e-4")
    assert ids("lr=1e-4") == ids("lr=0.0001") == ids("lr=1.0e-4") == ids("lr=1e-4", resources={"gpus": 8})
    assert ids("relative.a=1") == ids("relative.a=1.0") != ids("relative.a=2")
    before = ids("lr=1")
    Path("data.txt").write_text("one")
    one = ids("lr=1")
    Path("data.txt").write_text("two")
    assert len({*before, *one, *ids("lr=1")}) == 3  # the content of a file that is named counts
    (job,) = jobs(compositions, ["lr=1"], settings(), PROGRAM, outputs={str(folder / "data.txt"): ""}).jobs
    assert job.run != one[0]
    assert ids("path='${hydra:runtime.cwd}/data.txt'") == ids("path=data.txt")


def test_what_has_no_value_in_one_job_does_not_keep_that_of_another(compositions: Compositions) -> None:
    made = planned(compositions, ["db.name=mysql,none"])
    assert [made.runs[job.run].config["config"]["chosen"] for job in made.jobs] == [1, "${by.${db.name}}"]


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["+b=x${when}"], "x${when}"),
        (["+a=${when}", "+b='${lr}/${a}'"], "${lr}/${a}"),
        (["+b='${oc.select:when}'", "lr=1,2"], "${oc.select:when}"),
        (["+a={k:{when:${now:%s}}}", "+c=k", "+b='${a.${c}}'"], "${a.${c}}"),
        (["+root='${hydra:sweep.dir}'", "+b=${root}/x"], "${root}/x"),
        (["+a=[1,${out}]", "+b=${a}"], "${a}"),
        (["+a='${hydra:runtime.cwd}'", "+b=${a}/x", "db=mysql,sqlite"], "./x"),
        (["+hydra.job.env_set.B='${hydra:sweep.dir}'", "+b='${oc.env:B}'"], "${hydra:sweep.dir}"),
    ],
)
def test_what_refers_to_the_launch_is_no_part_of_a_run(
    compositions: Compositions, words: list[str], written: str
) -> None:
    assert {run.config["config"]["b"] for run in planned(compositions, words).runs.values()} == {written}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["+b='${hydra:runtime.choices.db}'", "db=mysql,sqlite"], ["mysql", "sqlite"]),
        (["+hydra.job.env_set.B=x,y", "+b='${oc.env:B,none}'"], ["x", "y"]),
        (["+hydra.job.env_set.B='n${hydra:job.num}'", "+b='${oc.env:B,none}'", "seed=0,1"], ["n0", "n1"]),
    ],
)
def test_what_each_launch_sets_alike_is_part_of_a_run(
    compositions: Compositions, words: list[str], values: list[str]
) -> None:
    assert [run.config["config"]["b"] for run in planned(compositions, words).runs.values()] == values


def test_groups_factors_zips_and_seeds_multiply(compositions: Compositions) -> None:
    experiment = {
        "groups": {"A": {"optim": "adam"}, "B": {"optim": "sgd", "optim.momentum": 0.5}},
        "baseline": "A",
        "seeds": [0, 1],
        "factors": {"lr": [1, 2]},
        "zip": {"size": {"typed.n": [1, 2], "typed.rate": [0.1, 0.2]}},
        "exclude": [{"lr": 2, "typed.n": 2, "group": "B"}],
    }
    made = planned(compositions, [], experiment=experiment)
    cells = {(e.group, e.seed, *e.factors.values()) for e in made.entries}
    each = itertools.product("AB", [0, 1], [1, 2], [(1, 0.1), (2, 0.2)])
    assert cells == {(g, s, lr, n, r) for g, s, lr, (n, r) in each if (g, lr, n) != ("B", 2, 2)}
    assert made.levels == {"lr": [1, 2], "typed.n": [1, 2], "typed.rate": [0.1, 0.2]}
    swept = planned(compositions, ["lr=7", "seed=5"], experiment=experiment)
    assert {(e.seed, *e.factors) for e in swept.entries} == {(5, "n", "rate")}  # the command line has the last word
    assert len(planned(compositions, ["++lr=5"], experiment={"factors": {"lr": [1, 2]}}).jobs) == 1
    part = planned(compositions, ["lr=5"], experiment={"zip": {"z": {"lr": [1, 2], "typed.n": [7, 7]}}})
    assert len(part.jobs) == 1  # without lr, its levels are equal
    added = planned(compositions, ["+more.seed=3,4", "lr=1,2"], seed_key="more.seed")
    assert [(e.seed, e.factors) for e in added.entries] == [(s, {"lr": lr}) for s in (3, 4) for lr in (1, 2)]


@pytest.mark.parametrize(
    ("words", "section", "problems"),
    [
        (["nope=1,2", "typed.n=1,x"], {}, ["nope = 1", "nope = 2", "typed.n = x"]),
        (["db=mysql,oracle"], {}, ["oracle"]),
        (["db=mysql,null"], {}, ["db=null: ValueError: Config group override must be"]),
        (
            ["lr=1"],
            {"ignore": ["relative.d", "q"]},
            ["ignore = relative.d: no job's configuration has", "ignore = q: no job's"],
        ),
        (["lr=interval(0,1)"], {}, ["interval"]),
        (["lr=1,2"], {"resources": {"time": 5}}, ["hydra.sweeper.resources.time = 5"]),
        ([], {"experiment": {"zip": {"z": {"lr": [1, 2], "typed.n": [1]}}}}, ["each key of a zip must have the same"]),
        (["optim=sgd"], {"experiment": {"groups": {"A": {"optim": "adam"}}}}, ["group A holds this key fixed"]),
        (["++lr=5"], {"experiment": {"groups": {"A": {"lr": 1}}}}, ["lr: group A holds this key fixed"]),
        (["++new=5"], {"experiment": {"groups": {"A": {"+new": 1}}}}, ["group A holds this key fixed"]),
        (
            [],
            {"experiment": {"groups": {"A": {"lr": 1}}, "factors": {"lr": [3, 4]}}},
            ["experiment.factors.lr: group A holds this key fixed"],
        ),
        (
            [],
            {"experiment": {"factors": {"lr": [1, 2]}, "zip": {"z": {"lr": [1, 2], "typed.n": [7, 8]}}}},
            ["experiment.zip.z.lr: two factors, or zips, have this key"],
        ),
        (["db=glob(z*)"], {}, ["db = glob(z*): it has no level, so the sweep has no job; the options of db are"]),
        (["+lr2=range(1,1)"], {}, ["so the sweep has no job"]),
        (["lr=1,2"], {"experiment": {"exclude": [{"lr": [1, 2]}]}}, ["the sweep has no job, because this leaves out"]),
    ],
)
def test_everything_that_is_wrong_is_said_before_any_job(
    compositions: Compositions, words: list[str], section: dict[str, Any], problems: list[str]
) -> None:
    with pytest.raises(InvalidPlan) as raised:
        planned(compositions, words, **section)
    said = str(raised.value).splitlines()
    assert all(any(problem in line for line in said) for problem in problems)
    assert all(". Fix: " in line for line in said)


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        (
            "experiment.seeds", {"start": 4, "max": 8, "until": "decided"},
            "must be a list of seeds, such as [0, 1, 2]. Fix: give a list of seeds, such as [0, 1, 2]",
        ),
        ("experiment.exclude", {"lr": 1}, "must be a list. Fix: give a list"),
        ("experiment.groups", ["A"], "must be a mapping of groups to mappings of keys to values. Fix: give a mapping"),
        ("experiment.factors", ["lr"], "must be a mapping of keys to lists of levels. Fix: give a mapping"),
        ("experiment.zip", ["lr"], "must be a mapping. Fix: give a mapping"),
        ("ignore", {"lr": 1}, "must be a list. Fix: give a list"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_than_its_key_is_refused_by_the_key(key: str, given: Any, said: str) -> None:
    """The defaults are merged with the program's section as Hydra merges them."""
    defaults = {key: SETTINGS[key] for key in Sweep.model_fields}
    section = OmegaConf.merge(defaults, assign({}, key, given))
    with pytest.raises(InvalidPlan) as raised:
        checked(Sweep, OmegaConf.to_container(section), "hydra.sweeper")
    assert f"hydra.sweeper.{key} = {given}: {said}" in str(raised.value)


def test_an_object_that_is_no_plain_value_stays_as_written_or_is_refused_by_its_key(
    compositions: Compositions, monkeypatch: pytest.MonkeyPatch
) -> None:
    OmegaConf.register_new_resolver("made", lambda: object(), replace=True)
    (run,) = planned(compositions, ["+a=${made:}"]).runs.values()
    assert run.config["config"]["a"] == "${made:}"
    made = OmegaConf.create({"o": {"x": object()}}, flags={"allow_objects": True})
    ConfigStore.instance().store(group="typed", name="object", node=made)
    with pytest.raises(InvalidPlan, match=r"typed\.o\.x: .*ignore=\[typed\.o\.x\]"):
        planned(compositions, ["typed=object"])
    monkeypatch.setattr(compositions, "_ignore", ["typed.o.x"])
    assert planned(compositions, ["typed=object", "lr=1,2"]).runs
