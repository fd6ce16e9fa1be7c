"""A copy of the code of a launch, so that later edits do not change runs that wait in a queue."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from launcher.application import packages
from launcher.errors import Usage
from launcher.project import CONF, COPIES, PACKAGES, output_of
from launcher.run import code, launch_record
from launcher.run.folder import multirun_of, read_provenance
from launcher.run.lifecycle import read_state
from launcher.schedulers.protocol import Order
from launcher.text import one_line
from launcher.worker.provenance import Source, sources

#: Larger files, and those beyond this sum, are data rather than code: the copy has links to them.
LARGEST_FILE = 8 << 20
LARGEST_SUM = 256 << 20
# What runs and reports need, if git cannot list it.
_ROOMS = (*packages(), *(f"{it}.py" for it in packages()), CONF.name, "hydra_plugins", "launch.py", "rlsweep.py")

# A commit of a repository in a new folder, with a patch if there is one; the repository stays as it is.
_CHECK_OUT = """
git clone -q --shared --no-checkout "$1" "$2"; cd "$2"
git checkout -q --detach "$3"; [ -z "$4" ] || git apply "$4"
"""


def of_launch(order: Order) -> Path:
    """The copy of the code that the runs of a launch have, which this call makes."""
    outside = sources(order.plan.runs[run_id].config for run_id in order.run_ids)
    return copy(order.root, order.record.absolute().with_suffix("") / "code", order.plan.multirun, outside)


def copy(root: Path, to: Path, multirun: Path, user_code: Iterable[Source] = ()) -> Path:
    """Copy the project's sources (tracked and new files, not ignored ones) to a new folder, and return it.

    Files in `multirun`, the folder of results, and deleted files are left out. Links stay links. user_code: packages
    and files from outside; the files of a package that git ignores, such as compiled modules, become links.
    """
    # Beside an installed wheel there are other packages.
    listed = _listed(root, _ROOMS) if CONF.name == "conf" else _files(root, _ROOMS)
    names = [name for name in listed if not (root / name).resolve().is_relative_to(multirun.resolve())]
    _copy(root, names, to)
    for source in user_code:
        parent = to / PACKAGES if source.imported else to / COPIES.name / source.path.parent.relative_to("/")
        place = parent / source.path.name
        if source.path.is_dir():
            _copy(source.path, _listed(source.path), place)
            _link_rest(source.path, place)
        else:
            folder = source.path.resolve().parent
            _copy(folder, [str(file.relative_to(folder)) for file in source.files], parent)
            if source.path.is_symlink():
                shutil.copy2(source.path, place)
    return to


def restore(root: Path, to: Path, folder: Path) -> list[Path]:
    """Copy the project's present sources to a new folder, with the user's code as a run had it: from its repositories.

    folder: the run's. A file that its commit and patch do not give is taken from its place if it is unchanged there.
    Returns the folders of the user's code in the copy. Usage: some of it is not available any more.
    """
    copy(root, to, multirun_of(folder))
    why, copies = [], to / COPIES.name
    for top, used in launch_record.repositories(folder).items():
        words = (top, str(copies / top.lstrip("/")), used["commit"], used["patch"] or "")
        command = ["sh", "-ec", _CHECK_OUT, "sh", *words]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        why += [f"{top} at {used['commit']}: {one_line(done.stderr)}"] if done.returncode else []
    places = [Path(path).parent for path in read_provenance(folder)[launch_record.USER_CODE]]
    near = [copies, *(copies / place.relative_to("/") for place in places)]
    lacking = []
    for then in filter(None, (code.read(multirun_of(folder), id) for id in read_state(folder).code_ids())):
        gone = code.changes(then, places)
        for name in filter(code.is_users, then.modules.keys() & code.changes(then, near).keys()):
            file = code.find(code.placed(name, then.root), places)
            if file is None or name in gone:
                lacking.append(code.placed(name, then.root))
                continue
            place = copies / file.relative_to("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)
    if lacking:
        named = ", ".join(dict.fromkeys(lacking))
        why.insert(0, f"neither its repository nor its folder has {named} as the run used it")
        fix = "restore it in the folder, or the commit in the repository, and repeat the command"
        raise Usage(f"run {folder.name}: its code cannot be restored: {'; '.join(why)}. Fix: {fix}")
    return near[1:]


def _copy(root: Path, names: Iterable[str], to: Path) -> None:
    total = 0
    for name in names:
        source, target = root / name, to / name
        if not os.path.lexists(source) or os.path.lexists(target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        size = source.lstat().st_size
        leads_out = source.is_symlink() and not source.resolve().is_relative_to(root.resolve())
        if leads_out or size > LARGEST_FILE or total + size > LARGEST_SUM:
            target.symlink_to(source.resolve())
            continue
        total += size
        shutil.copy2(source, target, follow_symlinks=False)


def _link_rest(folder: Path, to: Path) -> None:
    """Links to the files and folders that were not copied, so that compiled modules and data are found."""
    for source in folder.iterdir():
        target = to / source.name
        if source.name == "__pycache__":
            continue
        if target.is_dir() and not target.is_symlink():
            _link_rest(source, target)
        elif not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.resolve())


def _listed(folder: Path, rooms: Iterable[str] = (".",)) -> list[str]:
    """The files of a folder that git tracks or that are new; if git cannot list them, all files of these rooms."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = map(os.fsdecode, (output_of(command) or b"").split(b"\0"))
    # A submodule is listed as a folder.
    names = {name for name in listed if name and not (folder / name).is_dir()}
    return sorted(names) if names else _files(folder, rooms)


def _files(folder: Path, rooms: Iterable[str]) -> list[str]:
    paths = [path for room in rooms for path in [folder / room, *sorted((folder / room).rglob("*"))]]
    return [str(path.relative_to(folder)) for path in paths if path.is_file() and "__pycache__" not in path.parts]
