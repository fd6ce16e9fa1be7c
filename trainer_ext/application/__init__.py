"""This project's application of the sweep engine: runs of RL on verl. `launcher.application` says what it is asked.

Its modules; the launcher and every run import this one, so that it imports the others inside its methods:

    checks         the questions of one plan
    preflight      whether a run could start: its task, prompts, methods, models, memory
    declarations   what configuration files require, which metrics runs write, which of verl's keys a trainer reads
    verl_tree      verl's own configuration tree, and its merge with a run's differences
    method_parts   methods composed from parts
    other_names    what users probably mean by a name that the configuration does not have
    hub            a run's models at their commits on the hub
    commands       the commands `evaluate` and `export`
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from launcher.application import Base, Identity, Length, Shape, merged, seconds
from launcher.run.lifecycle import FailureKind
from trainer_ext.methods import continuing
from trainer_ext.objection import Objection

if TYPE_CHECKING:
    from trainer_ext.application.checks import Checks

_TASKS = "trainer_ext.scoring.tasks"
_BACKENDS = Path(__file__).parents[1] / "backends"


class Application:
    """The application of this project: see `launcher.application.Application`."""

    identity = Identity(
        sections=("seed", "method", "model", "task", "trainer", "verl"),
        open=frozenset({"verl"}),
        # task.name counts: it chooses the task's module
        ignored=frozenset(
            {
                "method.name",
                "model.name",
                "model.resources",
                "model.parallel",
                "model.seconds_per_step",
                "task.reward_timeout_s",
                "trainer.checkpoint_every",
                "trainer.checkpoints_kept",
                "trainer.hist_every",
                "trainer.eval_responses",
                "trainer.services_gb",
                "trainer.rank_gb",
                "trainer.vllm_gb",
                "trainer.ray",
            }
        ),
        # without them, a run has the identity that it had before these keys existed
        ignored_if_empty=frozenset(
            {
                "trainer.eval_before_train",
                "trainer.eval_pass",
                "trainer.eval_scores",
                "trainer.judged",
                "task.learned_reward",
                "task.limit",
            }
        ),
    )
    descriptions = ("verl_keys", "writes", "requires", "architecture")
    libraries = ("verl", "torch", "transformers")
    work = "trainer_ext.train:train"
    failures = MappingProxyType(
        {
            "trainer_ext.train:Preempted": FailureKind.PREEMPTED,
            "trainer_ext.train:Diverged": FailureKind.DIVERGED,
            "trainer_ext.backends.protocol:Lost": FailureKind.LOST,
            "trainer_ext.backends.protocol:NodeLost": FailureKind.NODE_FAILURE,
            "trainer_ext.backends.protocol:Stalled": FailureKind.STALLED,
        }
    )
    study = "trainer_ext.application:study"
    contents = ("weights", "optimizer")
    clocked = ("cost/", "timing_s/", "timing_per_token_ms/", "perf/", "speculative/speedup")
    warm = ("trainer_ext.application.verl_tree",)
    commands = MappingProxyType({name: f"trainer_ext.application.commands.{name}" for name in ("evaluate", "export")})

    # ------------------------------------------------------------ plans

    def parts(self) -> Any:
        from trainer_ext.application import method_parts

        return method_parts

    def checks(self) -> Checks:
        from trainer_ext.application.checks import Checks

        return Checks()

    def continuing(self, config: Mapping[str, Any], base: Base, shorter: Mapping[str, Any]) -> Sequence[Objection]:
        return list(continuing.obstacles({**config, "verl": merged(base.tree, config["verl"])}, shorter))

    def resources(self, config: Mapping[str, Any]) -> Shape:
        """`model.resources`, and the memory of the processes that the trainer starts beside the model's."""
        asked, trainer = config["model"].get("resources") or {}, config.get("trainer") or {}
        nodes = asked.get("nodes") or 1
        memory = float(asked.get("memory_gb") or 0)
        if memory:
            ranks = math.ceil(trainer.get("ranks", 0) / nodes)  # the services may all be on one node
            each = trainer.get("rank_gb", 0.0) + (trainer["vllm_gb"] if trainer.get("rollout") == "vllm" else 0.0)
            memory += trainer.get("services_gb", 0.0) + ranks * each
        return Shape(
            nodes=nodes,
            devices=asked.get("devices") or 0,
            cpus=asked.get("cpus") or 1,
            memory_gb=memory,
            time_s=seconds(asked.get("time") or "") or 0,
            joins_ray=bool(trainer.get("ray")),
        )

    def length(self, config: Mapping[str, Any]) -> Length:
        """What the section `trainer` says. Runs that an older version froze keep one checkpoint."""
        trainer = config["trainer"]
        return Length(
            steps=int(trainer["steps"]),
            checkpoint_every=int(trainer.get("checkpoint_every", trainer["steps"])),
            checkpoints_kept=trainer.get("checkpoints_kept", 1),
            first_step=0 if trainer.get("eval_before_train") else 1,
        )

    def requested_in(self, config: Mapping[str, Any], name: str) -> tuple[str, str]:
        """The model's file."""
        return f"conf/model/{config['model']['name']}.yaml", f"model.resources.{name}"

    def kinds(self, config: Mapping[str, Any]) -> tuple[str, str, str]:
        """By the model; by the task, the backend, and the differences to verl that set batches, lengths and sampling
        too; and by the method too."""
        from launcher.config import identity

        counts = identity.science(config)
        verl, task = config.get("verl") or {}, identity.by_content(config)["task"]
        work = [verl.get("data"), (verl.get("actor_rollout_ref") or {}).get("rollout")]
        model = identity.canonical_json(counts["model"])
        kind = f"{model} {identity.canonical_json([task, config['trainer'].get('backend'), work])}"
        return model, kind, f"{kind} {identity.canonical_json(counts['method'])}"

    def option(self, group: str, name: str, options: Collection[str]) -> str | None:
        from trainer_ext.application import other_names

        return other_names.option(group, name, options)

    def key(self, name: str, value: object) -> str | None:
        from trainer_ext.application import other_names

        return other_names.key(name, value, self.identity.sections)

    # ------------------------------------------------------------ runs

    def completed(self, folder: Path, config: Mapping[str, Any], commits: Mapping[str, str]) -> Any:
        """With verl's complete tree under `verl`, resolved. Missing values stay `???`."""
        from trainer_ext.application import hub, verl_tree

        return verl_tree.completed(folder, hub.pinned(config, commits) if commits else config)

    def first_steps(self, config: Mapping[str, Any]) -> Mapping[str, Callable[[Mapping[str, Any]], bool]]:
        trainer = config["trainer"]
        interval = continuing.histogram_interval(trainer["hist_every"], trainer["steps"])
        responses: Counter[int] = Counter()

        def is_among_first(record: Mapping[str, Any]) -> bool:
            responses[record["step"]] += 1
            kept = continuing.judged(trainer, record["step"]) or int(trainer["eval_responses"])
            return responses[record["step"]] <= kept

        return {"histograms.jsonl": lambda line: line["step"] % interval == 0, "responses.jsonl": is_among_first}

    def imports(self, config: Mapping[str, Any]) -> Sequence[str]:
        """The module of its reward, if the task names one as MODULE:FUNCTION."""
        spec = str((config.get("task") or {}).get("reward") or "")
        return [spec.partition(":")[0]] if ":" in spec and ".py:" not in spec else []

    def code_files(self, config: Mapping[str, Any] | None) -> Iterable[Path]:
        """The modules of the run's backend."""
        backend = "*" if config is None else str((config.get("trainer") or {}).get("backend"))
        return _BACKENDS.glob(f"{backend}/*.py")

    def data_files(self, config: Mapping[str, Any]) -> Iterable[Path]:
        """The files that the function `files` of the task names."""
        tasks, section = sys.modules.get(_TASKS), config.get("task") or {}
        if tasks is None or not section.get("name"):
            return ()
        return tasks.files(section)
