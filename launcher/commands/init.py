"""rlsweep init: make a repository for a study of your own, which works at once.

It has an experiment, a method part, a reward and prompts of its own. With --plain it has a script with @hydra.main in
their place, for programs that bring their own training. Exit codes: 0 fine, 2 the folder
exists, or its name is not allowed.
"""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from launcher.application import application
from launcher.commands import output
from launcher.errors import Usage, missing
from launcher.project import EXIT_FINE

HELP = "make a repository of your own"
_PLAIN = "launcher.commands:plain"
_SUFFIX = ".in"  # so that no tool takes a template for code
_NAME = re.compile("[A-Za-z][A-Za-z0-9_-]*")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder to make; its name is the study's")
    parser.add_argument("--plain", action="store_true", help="a script with @hydra.main instead")


def run(given: argparse.Namespace) -> int:
    """JSON: folder, files."""
    name = given.folder.absolute().name
    if not _NAME.fullmatch(name):
        raise Usage(f"folder = {given.folder}: its name must be letters, digits, - and _. Fix: name another")
    if given.folder.exists() and any(given.folder.iterdir()):
        fix = 'name a new folder; its README says under "Your script" how a script is swept where it is'
        raise Usage(f"folder = {given.folder}: it exists and is not empty. Fix: {fix}")
    study = "" if given.plain else application().study
    package, _, below = (study or _PLAIN).partition(":")
    values = {"name": name, "package": name.replace("-", "_").lower()}
    if study and missing(values["package"]) is None:
        rule = f"its package {values['package']} would hide the module of this name that is installed"
        raise Usage(f"folder = {given.folder}: {rule}. Fix: name another")
    written = []
    templates = Path(str(files(package).joinpath(below)))
    names = {"package": values["package"], "gitignore": ".gitignore"}
    for source in templates.rglob(f"*{_SUFFIX}"):
        parts = [part.removesuffix(_SUFFIX) for part in source.relative_to(templates).parts]
        place = given.folder.joinpath(*(names.get(part, part) for part in parts))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(Template(source.read_text(encoding="utf-8")).safe_substitute(values), encoding="utf-8")
        written.append(str(place.relative_to(given.folder)))
    first = "rlsweep launch experiment=first" if study else "python train.py -m"
    document = {"folder": str(given.folder), "files": sorted(written)}
    output(given, document, [f"{given.folder}: {len(written)} files. Next: cd {given.folder} && {first}"])
    return EXIT_FINE
