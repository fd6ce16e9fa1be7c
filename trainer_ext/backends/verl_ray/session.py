"""A run in Ray's driver: Ray itself, verl's trainer, and the state between steps."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from transformers import AutoConfig

from trainer_ext import metrics
from trainer_ext.backends.in_process import initial_model, target_model
from trainer_ext.backends.in_process.engine import load_tokenizer
from trainer_ext.backends.in_process.prompts import Prompts, answers_to, pairs_of_task
from trainer_ext.backends.in_process.trainer import multiplied_parameters
from trainer_ext.backends.verl_ray import adapters, node, plugin, shared  # noqa: F401  (plugin registers)
from trainer_ext.backends.verl_ray.loops import KeyedLoops, RowClient
from trainer_ext.backends.verl_ray.trainer import Step, Trainer
from trainer_ext.backends.verl_ray.tree import whole_tree
from trainer_ext.fits import devices
from trainer_ext.fits.architectures import causal_models
from trainer_ext.methods.continuing import judged, measures_kl
from trainer_ext.methods.update import Method, positions
from trainer_ext.registry import models_read
from trainer_ext.sampling.proposal import Weighted, proposal_of
from trainer_ext.scoring.scores.evaluation import JUDGED, Answer

_TRIES = 3  # attempts to start Ray


class Session:
    """The backend in the driver; process.VerlRay asks its methods."""

    def __init__(
        self,
        given: Mapping[str, Any],
        cache: str,
        folder: str,
        nodes: int = 1,
        address: str | None = None,
        group: str | None = None,
    ):
        """given: the configuration with verl's tree as plain values; folder: of a Ray that is started here; nodes: of
        the run; address: of the Ray to join instead; group: the run's placement group there, if others use this Ray
        too. ValueError: a value cannot work."""
        config = {**given, "verl": OmegaConf.create(given["verl"])}
        section, self._settings = config["method"], config["trainer"]
        verl = config["verl"]
        self._method = Method.read(section, int(self._settings["steps"]))
        model = initial_model.start(config, Path(cache))
        target = target_model.start(config, Path(cache), model)
        self._tokenizer = load_tokenizer(str(model), verl.actor_rollout_ref.model)
        self._task = config["task"]["name"]
        self._prompts = Prompts(config, Path(cache), self._tokenizer, int(config["seed"]))
        self._asked = self._prompts.of_run(self._settings)
        self._target_samples = target_model.samples(section)
        self._batch = int(verl.data.train_batch_size)
        tree = whole_tree(config, self._method, model, target, nodes)
        trust = bool(verl.actor_rollout_ref.model.trust_remote_code)
        counted = {name: _size(model if name != "target" else str(target), trust) for name in models_read(section)}
        self.parameters, multiplied = counted["policy"]
        self._update_flops = 6 * multiplied  # of a token: forward, gradients of activations, gradients of weights
        if verl.actor_rollout_ref.model.lora_rank:
            self._update_flops = 4 * multiplied + 6 * adapters.count(model, verl.actor_rollout_ref.model)
        self._read = sum(multiplied for _, multiplied in counted.values())

        self._joined = address is not None  # a Ray whose processes this one has not started
        if address is None:
            _start_ray(node.cpus(self._settings, nodes), devices.asked(config["model"])[1], folder)
        else:
            _join_ray(address, group)
        # Ray exits at SIGTERM; the run's process decides when to end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tq.init(tree.transfer_queue)
        actor = verl.actor_rollout_ref.actor
        self._reads_reference = self._method.reads_reference(actor)
        measured = bool(self._settings["grad_variance"])
        self.trainer = Trainer(tree, self._method, self._task, bool(actor.use_kl_loss), measured)
        self.trainer.init()
        self.trainer.agent_loop_manager = KeyedLoops.create(
            config=tree,
            llm_client=self.trainer.llm_server_manager.get_client(RowClient),
            reward_loop_worker_handles=self.trainer.get_reward_handles(),
        )
        self._samples = self._tokens = self._memory = 0
        self._positions: dict[str, torch.Tensor] = {}
        self.newest = Step()

    def step(self, step: int) -> tuple[dict[str, float], Mapping[str, Any], int, int, int]:
        """Metrics, what was drawn, samples, tokens, peak memory in bytes. Raises what Trainer.explained does."""
        with self.trainer.explained():
            data, self.newest = self.trainer.config.data, Step(self._prompts.of_step(step, self._batch))
            self.newest.reads_reference = self._reads_reference or measures_kl(self._settings, step)
            if self._method.reads_pairs_of_task:
                length, seed = int(data.max_response_length), int(data.seed)
                pairs = pairs_of_task(self._task, self.newest.prompts, self._tokenizer, length, seed, step)
                self.newest.pairs = pairs
            batch = self.trainer.train(step, self.newest)
            values, scored = {**self.newest.values, **self._drawn()}, self.newest.scored
            self.trainer.on_step_end()
            self._clear(batch)
            rows, new = len(scored.rewards), int(scored.mask.sum())
            self._samples, self._tokens = self._samples + rows, self._tokens + new
            flops = 2 * self._read * new + self._update_flops * self.newest.trained_tokens
            values |= {"samples/total": float(self._samples), "tokens/total": float(self._tokens)}
            values |= {"cost/flops_per_sample": flops / rows, **self._target_samples}
            return values, self._prompts.drawn, self._samples, self._tokens, self._peak()

    def _clear(self, batch: Any) -> None:
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)

    def evaluate(self, step: int) -> tuple[list[Answer], int]:
        """The answers of the policy after a step, and peak memory in bytes. Raises what Trainer.explained does."""
        with self.trainer.explained():
            self.trainer.global_steps = step
            prompts = [entry for entry in self._asked if judged(self._settings, step) or entry[0] != JUDGED]
            scored = self.trainer.evaluate([prompt for _, prompt in prompts])
            return answers_to(prompts, scored, 1 + int(self._settings["eval_samples"])), self._peak()

    def _peak(self) -> int:
        """The most bytes that the run was seen to hold, in memory and on its devices."""
        held = self._on_devices() + node.held()
        if self._joined:  # processes of Ray that this one has not started
            asked = ray.remote(num_cpus=0)(node.of_ray)
            places = [asked.options(scheduling_strategy=shared.on_node(name)) for name in shared.nodes()]
            held += sum(ray.get([place.remote() for place in places]))
        self._memory = max(self._memory, held)
        return self._memory

    def _drawn(self) -> dict[str, float]:
        """What the sampler saw of this step's tokens, where it remembers something."""
        self._positions = {}
        proposal = proposal_of(self._method.section)
        if not isinstance(proposal, Weighted):
            return {}
        servers = self.trainer.llm_server_manager.server_handles
        proposal.seen = [one for some in ray.get([server.seen.remote() for server in servers]) for one in some]
        self._positions = proposal.positions
        return proposal.metrics()

    def histograms(self) -> dict[str, tuple[list[float], list[int]]]:
        scored, updates = self.newest.scored, self.newest.update
        seen = positions(self._method, scored, self._positions)
        return metrics.histograms(scored.old, updates.advantages, scored.mask, seen)

    def _on_devices(self) -> int:
        """The most bytes that ranks and servers have held on their devices."""
        if devices.kind() == devices.CPU:
            return 0
        ranks = sum(self.trainer.actor_rollout_wg.device_peak())
        if self._settings["rollout"] != "hf":
            return ranks  # vLLM takes what it is given
        servers = self.trainer.llm_server_manager.server_handles
        return ranks + sum(ray.get([server.device_peak.remote() for server in servers]))

    def save(self, folder: str, state: dict[str, Any]) -> None:
        """Write a checkpoint with `state` (JSON values) beside the training's own."""
        for name, ranks in self._trained_models().items():
            (Path(folder) / name).mkdir()
            ranks.save_shards(str(Path(folder) / name))
        training = {"samples": self._samples, "tokens": self._tokens, "step": self.trainer.global_steps}
        dual = self._method.controller.state_dict() if self._method.controller else None
        whole = {"training": training, "controller": dual, "run": state}
        (Path(folder) / "state.json").write_text(json.dumps(whole, indent=1))

    def _trained_models(self) -> dict[str, Any]:
        """The ranks of each model that is trained, by the name of its folder in a checkpoint."""
        critic = {"critic": self.trainer.critic_wg} if self.trainer.use_critic else {}
        return {"actor": self.trainer.actor_rollout_wg, **critic}

    def load(self, folder: str) -> tuple[dict[str, Any], int, int]:
        """Restore a checkpoint; returns what `save` was given, samples and tokens."""
        trainer, state = self.trainer, json.loads((Path(folder) / "state.json").read_text())
        with trainer.explained():
            trainer.checkpoint_manager.sleep_replicas()
            for name, ranks in self._trained_models().items():
                ranks.load_shards(str(Path(folder) / name))
            trainer.global_steps = state["training"]["step"]
            trainer.checkpoint_manager.update_weights(trainer.global_steps)
        self._samples, self._tokens = state["training"]["samples"], state["training"]["tokens"]
        if self._method.controller:
            self._method.controller.load_state_dict(state["controller"])
        return dict(state["run"]), self._samples, self._tokens

    def close(self) -> None:
        """End Ray, and with it every process that it started."""
        tq.close()
        ray.shutdown()


def _start_ray(cpus: int, gpus: int, folder: str) -> None:
    """Start a Ray with these counts of CPUs and GPUs. It gives its node 30 s; on a busy machine it is tried again."""
    options = {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": node.OBJECTS, "include_dashboard": False}
    for tries in reversed(range(_TRIES)):
        try:
            _init_ray("local", **options, _temp_dir=folder)
            return
        except Exception as error:
            ray.shutdown()
            if not tries or "timed out during startup" not in str(error):
                raise


def _init_ray(address: str, **more: Any) -> None:
    options: dict[str, Any] = {
        "namespace": "rlsweep",
        "runtime_env": {"worker_process_setup_hook": f"{node.__name__}.{node.collect_rarely.__name__}"},
        **more,
    }
    ray.init(address=address, log_to_driver=True, logging_level="warning", **options)


def _join_ray(address: str, group: str | None) -> None:
    """Join a Ray that another process has started."""
    if group is None:
        _init_ray(address)
        return
    environment = {name: os.environ[name] for name in shared.ENVIRONMENT if name in os.environ}
    environment |= devices.environment(devices.kind())
    setup = f"{node.__name__}.{node.in_shared_ray.__name__}"
    runtime = {"env_vars": {**environment, node.MARK: group}, "worker_process_setup_hook": setup}
    _init_ray(address, namespace=f"rlsweep-{group}", runtime_env=runtime)
    shared.join(group)


def _size(model: str, trust: bool) -> tuple[int, int]:
    """Parameters of a model, all and those that multiply a token, counted without its weights."""
    module = causal_models.without_weights(AutoConfig.from_pretrained(model, trust_remote_code=trust), trust)
    return sum(p.numel() for p in module.parameters()), multiplied_parameters(module)
