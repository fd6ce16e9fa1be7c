"""Where a run came from: the whole tree as it was, no secret, and the way back to the same run."""

from __future__ import annotations

import json
import os
import shutil
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher import secrets
from launcher.commands import verify
from launcher.config import content, identity
from launcher.run import code, launch_record
from launcher.run.folder import FORMAT, base_path, metrics_path, read_config, run_folder
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import RunState, State, read_state, write_state
from launcher.worker import provenance
from tests.trees import commit, git, write

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A git tree with one commit."""
    files = {"old.py": "a = 1\nb = 2\nc = 3\n", "gone.py": "x = 1\n", ".gitignore": "ignored/\n"}
    commit(folder := write(tmp_path / "tree", files))
    return folder


def contents(tree: Path) -> dict[str, bytes]:
    files = (path for path in tree.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(tree)): path.read_bytes() for path in files}


# ---------------------------------------------------------------- the tree


def test_the_patch_gives_the_tree_back_with_new_changed_and_deleted_files(tree: Path, tmp_path: Path) -> None:
    (tree / "latin.py").write_bytes(b"# coding: latin-1\na = 'caf\xe9'\n")
    (tree / "lines.txt").write_bytes(b"a\r\nb\r\n")
    commit(tree)
    (tree / "latin.py").write_bytes(b"# coding: latin-1\na = '\xe9t\xe9'\n")
    (tree / "lines.txt").write_bytes(b"a\r\nc\xff\r\n")
    (tree / "new.py").write_bytes(b"# coding: latin-1\nname = '\xe9'\n")
    new = {"new folder/méthode [1].py": "eos_token=tokenizer.eos_token\n", "empty.py": "", "staged.py": "s = 1\n"}
    write(tree, {"old.py": "a = 1\nb = 'changed'\nc = 3\n", **new})
    (tree / "gone.py").unlink()
    git(tree, "add", "staged.py")
    before = git(tree, "status", "--porcelain")
    found = provenance.collect(tree, "command")
    assert git(tree, "status", "--porcelain") == before  # the user's index is as it was
    assert found.record["dirty"] and found.record["patch"] == {"exact": True, "left_out": []}
    git(tmp_path, "clone", "-q", str(tree), "copy")
    (tmp_path / "dirty.patch").write_bytes(found.patches[found.patch or ""])
    git(tmp_path / "copy", "apply", str(tmp_path / "dirty.patch"))
    assert contents(tmp_path / "copy") == contents(tree)
    folder = frozen(tmp_path / "m")
    (folder / "provenance.json").write_text(json.dumps(found.record))
    shutil.copy(tmp_path / "dirty.patch", folder)
    assert "uncommitted changes" not in verify.differences(folder, tree)


def test_data_and_results_are_named_or_left_out_of_the_patch(tree: Path) -> None:
    data = {"large.txt": "x" * (provenance.LARGEST_FILE + 1), "weights.bin": "\0\1"}
    write(tree, {**data, "ignored/i.py": "", "multi run/r.json": "{}"})
    found = provenance.collect(tree, "command", tree / "multi run")
    left_out = [f"large.txt ({provenance.LARGEST_FILE + 1} bytes)", "weights.bin (binary)"]
    assert found.record["patch"]["left_out"] == left_out
    assert found.record["dirty"] and found.patch is None


def test_new_files_that_may_hold_secrets_are_left_out_and_named_and_the_patch_is_private(
    tree: Path, tmp_path: Path
) -> None:
    secret = [".env", "closed/a.txt", "credentials.json", "mine.txt", "staged.pem"]
    write(tree, {**dict.fromkeys(secret, f"{SECRET_VALUE}\n"), "code.py": "x = 1\n"})
    (tree / "mine.txt").chmod(0o600)
    (tree / "closed").chmod(0o700)
    git(tree, "add", "credentials.json", "staged.pem")
    git(tree, "add", "--intent-to-add", ".env")
    before = git(tree, "status", "--porcelain")
    found = provenance.collect(tree, "command")
    assert git(tree, "status", "--porcelain") == before
    assert SECRET_VALUE not in text(found) and "+x = 1" in text(found)
    assert [line.partition(" ")[0] for line in found.record["patch"]["left_out"]] == secret
    warning = found.warning()
    assert warning is not None and ".env (named like" in warning and "mine.txt (only its owner" in warning
    launch_record.keep_patches(tmp_path, found.patches)
    (kept,) = launch_record.launches_folder(tmp_path).iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600 and (kept.name, kept.read_text()) == (found.patch, text(found))


def test_a_umask_that_makes_every_file_private_leaves_none_out(tree: Path) -> None:
    umask = os.umask(0o077)
    try:
        git(tree, "rm", "-q", "--cached", "-r", ".")
        git(tree, "reset", "-q")
        (tree / "code.py").touch()
        found = provenance.collect(tree, "command")
    finally:
        os.umask(umask)
    assert found.record["patch"]["left_out"] == [] and found.warning() is None
    assert "code.py" in text(found)


def test_a_clean_tree_has_no_patch_and_a_folder_without_git_no_commit(tree: Path, tmp_path: Path) -> None:
    clean = provenance.collect(tree, "command")
    assert (clean.record["dirty"], clean.patch) == (False, None)
    assert clean.record["commit"] == git(tree, "rev-parse", "HEAD")
    (tmp_path / "none").mkdir()
    none = provenance.collect(tmp_path / "none", "command")
    assert (none.record["commit"], none.record["dirty"], none.patch) == (None, None, None)
    (tree / "site-packages").mkdir()  # rlsweep as a wheel, in an environment inside somebody's repository
    assert provenance.collect(tree / "site-packages", "command").record["commit"] is None


def test_the_record_says_what_a_run_depends_on(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    record = provenance.collect(tree, "python launch.py -m").record
    assert record["packages"]["torch"].startswith("2.") and record["command"] == "python launch.py -m"
    assert record["threads"]["OMP_NUM_THREADS"] == "3"
    assert record["devices"]["visible"] == "1"


def test_a_worker_takes_the_gpus_of_its_launchs_host_and_asks_on_another() -> None:
    launched = {**provenance.here({}), "devices": {"visible": None, "gpus": ["of the launch"]}}
    assert provenance.here({**launched, "host": os.uname().nodename})["devices"]["gpus"] == ["of the launch"]
    assert provenance.here({**launched, "host": "elsewhere"})["devices"]["gpus"] != ["of the launch"]


# ---------------------------------------------------------------- code from outside of the project


@pytest.fixture
def outside(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in a git tree with a package that imports another one, in a folder without git; and a reward."""
    loss = "def f(*_):\n    import json, torch, second_pkg.deep\n    return 1.0\n"
    write(tree / "code/first_pkg", {"__init__.py": "RATE = 1\n", "loss.py": loss, "ignored/words.txt": "words"})
    commit(tree)
    write(tree, {"rewards.py": "import beside\n\ndef f(*_): return beside.VALUE\n", "beside.py": "VALUE = 1.0\n"})
    second = write(tmp_path / "no_git", {"second_pkg/__init__.py": "", "second_pkg/deep.py": "X = 1\n"})
    for place in (tree / "code", second):
        monkeypatch.syspath_prepend(place)
    return tree / "code"


def configured(reward: str) -> dict[str, Any]:
    return content.settled({"seed": 0, "task": {"name": "file", "reward": reward}})


def text(found: provenance.Provenance) -> str:
    """The patch of the project's changes."""
    assert found.patch is not None
    return found.patches[found.patch].decode()


def used(reward: str) -> list[provenance.Source]:
    return [source for source in provenance.sources([configured(reward)]) if "/site-packages/" not in str(source.path)]


def test_the_users_code_is_what_runs_import_directly_or_not(outside: Path, tmp_path: Path) -> None:
    packages = [tmp_path / "no_git" / "second_pkg", outside / "first_pkg"]
    assert [source.path for source in used("first_pkg.loss:f")] == sorted(packages)
    (file,) = used(f"{outside.parent}/rewards.py:f")
    assert file.files == [outside.parent / "rewards.py", outside.parent / "beside.py"]
    (outside.parent / "beside.py").write_text("import first_pkg.loss\nVALUE = 1.0\n")
    found = {source.path for source in used(f"{outside.parent}/rewards.py:f")}
    assert found == {*packages, outside.parent / "rewards.py"}
    assert used("exact_match") == []


def test_a_package_is_recorded_with_its_own_commit_and_patch_and_without_git_by_its_content(
    outside: Path, tmp_path: Path
) -> None:
    changed = {"code/first_pkg/loss.py": "import second_pkg\n# changed\n", "old.py": "# not imported\n"}
    write(outside.parent, changed)
    found = provenance.collect(ROOT, "command", None, used("first_pkg.loss:f"))
    second, first = found.record["user_code"].values()
    assert second["commit"] is None and len(second["digest"]) == 16
    assert first["commit"] == git(outside, "rev-parse", "HEAD")
    assert (first["repository"], first["dirty"]) == (str(outside.parent), True)
    patch = found.patches[first["patch"]]
    assert b"# changed" in patch and b"not imported" not in patch
    launch_record.write(tmp_path / "m", Launch(found.record, patch=found.patch), found.patches)
    assert (tmp_path / "m" / "launches" / first["patch"]).read_bytes() == patch


def test_users_code_that_is_not_as_it_was_is_said(outside: Path, tmp_path: Path) -> None:
    multirun = tmp_path / "m"
    config = configured("first_pkg.loss:f")
    folder = frozen(multirun, **{key: value for key, value in config.items() if key != "seed"})
    modules = {f"{name}.py": "0" * 16 for name in ("first_pkg/loss", "second_pkg/deep", "trainer_ext/methods/health")}
    write_state(folder, State(folder.name, RunState.DONE, code={"1": code.keep(multirun, code.Code(modules=modules))}))
    record = provenance.collect(outside.parent, "command", None, used("first_pkg.loss:f")).record
    (folder / "provenance.json").write_text(json.dumps(record))
    changed = {"first_pkg/loss.py", "second_pkg/deep.py"}
    assert changed <= verify.differences(folder, outside.parent).keys()


# ---------------------------------------------------------------- secrets

SECRET_VALUE = "hunter2hunter2"
VISIBLE = string.ascii_letters + string.digits + string.punctuation
SECRET = st.text(VISIBLE, min_size=8, max_size=40).filter(lambda text: set(text) - set("*"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    secret=SECRET,
    name=st.sampled_from(
        ["HF_TOKEN", "OPENAI_API_KEY", "wandb_api_key", "DB_PASSWORD", "AWS_SECRET", "MY_CREDENTIALS"]
    ),
    around=st.tuples(st.text(VISIBLE, max_size=20), st.text(VISIBLE, max_size=20)),
)
def test_no_secret_of_the_environment_survives(secret: str, name: str, around: tuple[str, str]) -> None:
    environment = {name: secret, "HOME": "/home/me"}
    text = secret.join(around)
    lines = f"+{text}\n-{text}\n {text}\n@@ {text}\n"
    if secret not in secrets.MASK * 20:
        assert secret not in secrets.mask(text, environment)
        assert secret not in secrets.mask_patch(lines, environment)
    assert [variable for _, variable in secrets.within({"a": [{"b": secret}]}, environment)] == [name]


def test_only_what_a_patch_adds_is_masked() -> None:
    """test_secrets.py has what that is."""
    old = "-api_key = 'abcdef123456'\n api_key = 'abcdef123456'\n"
    assert secrets.mask_patch(old, {}) == old  # in the commit already, and the patch must apply


def test_a_folder_in_a_variable_called_key_does_not_forbid_paths_below_it() -> None:
    environment = {"SSH_KEY_FOLDER": "/home/me/data1"}
    assert not list(secrets.within({"path": "/home/me/data1/model"}, environment))
    assert list(secrets.within({"url": "https://x/?k=abcdef123456"}, {"A_KEY": "abcdef123456"})) == [("url", "A_KEY")]


# ---------------------------------------------------------------- the same run again


def frozen(multirun: Path, **changes: Any) -> Path:
    """A frozen run whose folder, configuration and base fit one another."""
    base = "actor: {lr: 1}\n"
    config = {"base": identity.content_hash(base), "seed": 1, "method": {"a": 1}, "verl": {}}
    digest = identity.identity(config["base"], config)
    folder = run_folder(multirun, identity.run_id(digest))
    folder.mkdir(parents=True)
    (multirun / "bases").mkdir()
    base_path(multirun, config["base"]).write_text(base)
    about = {"format": 1, "id": folder.name, "identity": {"version": identity.VERSION, "hash": digest}}
    (folder / "config.yaml").write_text(yaml.safe_dump({**about, **config, **changes}))
    write_state(folder, State(folder.name, RunState.DONE))
    return folder


def test_an_edited_configuration_or_base_is_another_run(tmp_path: Path) -> None:
    assert verify.check_identity(frozen(tmp_path / "a"))["wrong"] == []
    (edited,) = verify.check_identity(frozen(tmp_path / "b", seed=2))["wrong"]
    assert "config.yaml: the configuration was changed" in edited
    folder = frozen(tmp_path / "c")
    base = base_path(tmp_path / "c", read_config(folder)["base"])
    base.write_text(base.read_text() + "more: 1\n")
    assert any("base" in line and "was changed" in line for line in verify.check_identity(folder)["wrong"])
    base.unlink()
    assert verify.check_identity(folder)["wrong"] == [f"{base} is gone"]
    folder.rename(folder.with_name("0" * 16))
    assert "not of 0000" in verify.check_identity(folder.with_name("0" * 16))["wrong"][-1]


def lines(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir()
    write_state(folder, State(folder.name, RunState.DONE, created=0.0))
    (folder / "config.yaml").write_text(f"format: {FORMAT}\n")
    text = "".join(json.dumps({"step": step, **record}) + "\n" for step, record in enumerate(records, 1))
    metrics_path(folder).write_text(text)
    return folder


def test_metrics_are_compared_to_the_last_bit_but_for_the_clock(tmp_path: Path) -> None:
    one = lines(tmp_path / "a", {"x": 0.1, "cost/step_seconds": 1, "time": 1}, {"x": float("nan")})
    two = lines(tmp_path / "b", {"x": 0.1, "cost/step_seconds": 2, "time": 2}, {"x": float("nan")})
    assert verify.first_difference(one, two) is None
    off = lines(tmp_path / "c", {"x": 0.1}, {"x": 0.1})
    assert verify.first_difference(one, off) == (2, "metrics", "x was nan and is 0.1")
    nearly = verify.first_difference(one, lines(tmp_path / "d", {"x": 0.1 + 2**-55}, {"x": float("nan")}))
    assert nearly is not None and nearly.step == 1 and nearly.detail.startswith("x was 0.1 and is 0.10000000000000")
    short = lines(tmp_path / "e", {"x": 0.1})
    assert verify.first_difference(one, short) == (2, "log", "it has 0 lines of this step in place of 1")


@pytest.mark.train
def test_the_printed_steps_give_the_run_again_from_a_dirty_tree(tmp_path: Path) -> None:
    tree = tmp_path / "pro ject"
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    commit(tree)
    # A method that no commit has, with one new file and one change.
    text = (tree / "conf/method/ptrw.yaml").read_text().replace("name: ptrw", "name: mine")
    (tree / "conf/method/mine.yaml").write_text(f"# {SECRET_VALUE}\n{text}")
    train = tree / "trainer_ext/train.py"
    train.write_text(train.read_text() + "\n# changed\n")
    small = ["trainer.steps=3", "task.warm_start.steps=2", "verl.data.train_batch_size=4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JUDGE_TOKEN": SECRET_VALUE}
    environment["TMPDIR"] = str(tmp_path)
    environment.pop("PYTHONPATH", None)

    def shell(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-ec", command], cwd=tree, env=environment, capture_output=True, text=True)

    launched = shell(f"{sys.executable} launch.py -m method=mine {' '.join(small)}")
    (folder,) = (tree / "multirun/runs").iterdir()
    assert read_state(folder).state == RunState.DONE, launched.stdout + launched.stderr
    written = [path for path in (tree / "multirun").rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET_VALUE.encode() in path.read_bytes()]
    assert "# ***" in (folder / "dirty.patch").read_text() and SECRET_VALUE not in launched.stdout + launched.stderr
    asked = shell(f"{sys.executable} -m launcher verify {folder.name} --json")
    document = json.loads(asked.stdout)
    assert (asked.returncode, document["identity"]["wrong"], document["differences"]) == (0, [], {})
    # The tree goes on; the steps take the code from where it was.
    git(tree, "checkout", "-q", "trainer_ext/train.py")
    (tree / "conf/method/mine.yaml").unlink()
    train.write_text("raise ImportError\n")
    done = shell("\n".join(document["steps"]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 steps are equal" in done.stdout
    assert "# changed" in (tmp_path / f"pro ject-{folder.name}" / "trainer_ext/train.py").read_text()
