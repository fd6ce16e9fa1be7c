"""python -m launcher export: a run's trained model as a folder that transformers, vLLM and other programs load.

The folder has the weights (safetensors), the configuration, the tokenizer, and rlsweep.json, which says which run and
step the weights come from.
Exit codes: 0 fine, 2 no such run or checkpoint, or the folder is not empty.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher import files
from launcher.commands import completion, output, selection
from launcher.project import EXIT_FINE
from launcher.run.folder import cache_folder, multirun_of, read_config
from trainer_ext.application.commands.evaluate import origin
from trainer_ext.application.verl_tree import completed

HELP = "write a run's trained model as a folder that transformers loads"
TYPES = ("float32", "bfloat16", "float16")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The run, the folder to write, the checkpoint, and the type of the weights."""
    completion.add_run(parser)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder to write; it must be empty or not exist")
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="default: the newest that the run has")
    parser.add_argument("--dtype", choices=TYPES, default=TYPES[0], help=f"of the weights; default: {TYPES[0]}")


def run(given: argparse.Namespace) -> int:
    """JSON: folder, run, step, seed, dtype, method, model, task. The new folder's rlsweep.json has the same."""
    out = selection.new_folder("DIR", given.folder)
    with selection.checkpoint(given) as (folder, step, checkpoint), files.new_folder(out) as draft:
        from trainer_ext.backends import protocol

        config = read_config(folder)
        protocol.export(completed(folder, config), checkpoint, cache_folder(multirun_of(folder)), draft, given.dtype)
        about = {**origin(folder, config, step), "dtype": given.dtype}
        files.write_json(draft / "rlsweep.json", about)
    written = f"{out}: the model of run {folder.name} after step {step}, as {given.dtype}"
    load = f'load it: transformers.AutoModelForCausalLM.from_pretrained("{out}")'
    output(given, {"folder": str(out), **about}, [written, load])
    return EXIT_FINE
