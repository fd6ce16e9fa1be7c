"""verl's synchronous V1 trainer, with the methods of this project between its stages. The caller drives each step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerSync, trainer_base
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import Metric
from verl.workers.utils.padding import response_from_nested, response_to_nested

from trainer_ext import registry
from trainer_ext.backends.in_process.prompts import Prompt
from trainer_ext.backends.protocol import Lost, Stalled
from trainer_ext.backends.verl_ray import reward, servers, workers
from trainer_ext.methods import losses, policy_loss
from trainer_ext.methods.update import Method, Scored, Update, update
from trainer_ext.metrics import explained_variance, probability_differences
from trainer_ext.sampling import draws
from trainer_ext.scoring import rewards

_POLL_S = 0.02  # between looks for responses; verl's 2 s are meant for steps of minutes
_LOOK_S, _ANSWER_S = 5.0, 30.0  # between checks that actors live; for one to answer
_PAIRS = "pairs"  # partition of the transfer queue; a row is one response of a pair of DPO

trainer_base.LLMServerManager = workers.Servers  # verl's trainer reads the class from its module


@dataclass
class Step:
    """The inputs of a training step (the first three fields), and what verl's stages add, one after the other.

    pairs: tokens of the task's responses, for each prompt the chosen and the rejected one. reads_reference: whether the
    reference scores the drawn responses. row_of: the row of each of verl's keys in the run's order (_in_order). kept:
    (B,) bool, the rows that rejection sampling keeps; trained_pairs: the rows that DPO trains on. values: metrics.
    trained_tokens: of policy and critic, counted in each epoch.
    """

    prompts: Sequence[Prompt] = ()
    pairs: Sequence[list[int]] | None = None
    reads_reference: bool = True
    row_of: Mapping[str, int] = field(default_factory=dict)
    scored: Scored | None = None
    update: Update | None = None
    kept: Tensor | None = None
    trained_pairs: KVBatchMeta | None = None
    values: dict[str, float] = field(default_factory=dict)
    trained_tokens: int = 0


class Trainer(PPOTrainerSync):
    """verl's stages of a step. This process passes the whole scored batch to `methods.update`, for any number of ranks.

    `trainer.v1.trainer_mode` stays "sync", the name of its parent: for another name verl takes other buffers.
    """

    def __init__(self, config: Any, method: Method, task: str, use_kl_loss: bool, grad_variance: bool):
        """config: verl's whole tree; task: its name; use_kl_loss: the run's own; grad_variance: whether to measure the
        variance of the policy's gradients."""
        self._method, self._task, self._use_kl_loss, self._grad_variance = method, task, use_kl_loss, grad_variance
        self._compares = config.actor_rollout_ref.rollout.name == servers.name_in_verl("vllm")
        self._now = Step()
        self.curr_step_profile = False
        self.timing_raw: dict[str, float] = {}
        super().__init__(config)

    def train(self, number: int, step: Step) -> KVBatchMeta:
        """Do step `number`, from 1, and fill in `step`; return its responses in the queue. The caller then calls
        `on_step_end`, and removes them."""
        self.global_steps, self.timing_raw, self._now = number, {}, step
        batch: KVBatchMeta = self.step({}, self.timing_raw)  # verl's own metrics have other names and definitions
        step.values["cost/sample_seconds"] = float(self.timing_raw["gen"])
        return batch

    # ------------------------------------------------------------ set-up

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = _POLL_S
        wait, checked = buffer._wait_for_next_poll, time.monotonic()

        def watched(*given: Any) -> Any:
            """Check the actors while verl waits: it would do so for ever, even for dead ones."""
            nonlocal checked
            if time.monotonic() - checked > _LOOK_S:
                self._check()
                checked = time.monotonic()
            return wait(*given)

        buffer._wait_for_next_poll = watched
        return buffer

    def _check(self) -> None:
        """Raise Lost if an agent loop or a rollout server is dead, Stalled if it does not answer."""
        makers = {
            "an agent loop": self.agent_loop_manager.agent_loop_workers,
            "a rollout server": self.llm_server_manager.server_handles,
        }
        for name, actors in makers.items():
            if not _answer(name, actors):
                raise Stalled(f"{name} has not answered for {_ANSWER_S:g} s")

    def _init_dataloader(self) -> None:
        """The run's own prompts take the place of verl's data sets."""

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in list(self.role_worker_mapping):
            worker = workers.ModelWorker if role == Role.Critic else workers.PolicyWorker
            self.role_worker_mapping[role] = ray.remote(worker)
        given = self.resource_pool_manager
        self.resource_pool_manager = workers.Pools(resource_pool_spec=given.resource_pool_spec, mapping=given.mapping)

    def on_init_end(self) -> None:
        """Send the weights to the servers, and the losses and the target's folder to the ranks."""
        super().on_init_end()
        settings = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        object.__setattr__(settings, "use_kl_loss", self._use_kl_loss)  # it is frozen
        if (loss := self._method.loss(settings)) is not None:
            self.actor_rollout_wg.set_loss_fn(partial(workers.on_packed, loss))
        if self._grad_variance:
            self.actor_rollout_wg.measure_grad_variance()
        section = self._method.section
        if self.use_critic:
            value = partial(losses.value, float(section["cliprange_value"]))
            self.critic_wg.set_loss_fn(partial(workers.on_packed, value))
        if section["sampler"] == "rejection":
            self.actor_rollout_wg.init_target(str(self.config.actor_rollout_ref.rollout.custom.target))

    # ------------------------------------------------------------ prompts

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        return self._rows(self._now.prompts, "sample")

    def _rows(self, prompts: Sequence[Prompt], purpose: str) -> TensorDict:
        """A row for each prompt, as the agent loops read it. purpose: "sample" or "evaluate", for the keys of draws."""
        step, count = self.global_steps, len(prompts)
        columns: dict[str, list[Any]] = {
            "uid": [f"{purpose}-{step:08d}-{place:06d}" for place in range(count)],
            "index": list(range(count)),
            "purpose": [purpose] * count,
            "prompt_tokens": [prompt.tokens for prompt in prompts],
            "data_source": [self._task] * count,
            "reward_model": [{"style": "rule", "ground_truth": prompt.ground_truth} for prompt in prompts],
            "extra_info": [reward.extra_info(prompt) for prompt in prompts],
        }
        data = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(data, "global_steps", step)
        return data

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        self._announce(len(batch) * int(self.config.actor_rollout_ref.rollout.n))
        return int(super()._submit_batch_to_rollout(batch))

    def _announce(self, requests: int) -> None:
        """Tell each server how many of the requests loops.RowClient will send it."""
        handles = self.llm_server_manager.server_handles
        counts = [len(range(rank, requests, len(handles))) for rank in range(len(handles))]
        ray.get([server.announce.remote(count) for server, count in zip(handles, counts, strict=True)])

    def evaluate(self, prompts: Sequence[Prompt]) -> list[tuple[str, rewards.Score]]:
        """Texts and scores of the policy's own responses: val_kwargs.n to each prompt in turn, the first one greedy."""
        batch = self._rows(prompts, "evaluate")
        tu.assign_non_tensor_data(batch, "validate", True)
        requests = len(prompts) * int(self.config.actor_rollout_ref.rollout.val_kwargs.n)
        self._announce(requests)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": self.global_steps} for _ in prompts]
        tq.kv_batch_put(keys=list(batch["uid"]), partition_id="val", tags=tags)
        self.agent_loop_manager.generate_sequences(batch)
        sampled, _ = self.replay_buffer.sample(
            global_steps=self.global_steps, partition_id="val", batch_size=len(prompts)
        )
        self._in_order(sampled, requests)
        data = tq.kv_batch_get(keys=sampled.keys, partition_id="val", select_fields=["responses", "extra_fields"])
        texts = [self.tokenizer.decode(row, skip_special_tokens=True) for row in data["responses"].unbind()]
        scores = _scores(data)
        tq.kv_clear(keys=sampled.keys, partition_id="val")
        return list(zip(texts, scores, strict=True))

    # ------------------------------------------------------------ stages of a step

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Replace an error in the block by its cause, if it is known.

        Lost, Stalled: a process died or hangs. FloatingPointError: a model's outputs are not numbers. RuntimeError: a
        response failed; it names the first one.
        """
        try:
            yield
        except Exception as error:
            self._check()
            _answer("a process that trains", self.actor_rollout_wg.workers)  # raises if one is dead; it may be late
            handles = self.llm_server_manager.server_handles
            try:
                failures = [x for some in ray.get([server.failures.remote() for server in handles]) for x in some]
            except ray.exceptions.RayActorError:  # a server whose engine is dead ends when it is asked
                self._check()
                raise
            if any(not_numbers for _, not_numbers in failures):
                raise FloatingPointError("logits") from error
            if failures:
                raise RuntimeError(f"{error}; the first response that failed: {failures[0][0]}") from error
            raise

    def _in_order(self, batch: KVBatchMeta, expected: int) -> None:
        """Put a batch into the run's order: by prompt, then by response. RuntimeError: responses are missing."""
        batch.reorder(sorted(range(len(batch)), key=lambda i: _place(batch.keys[i])))
        if len(batch) != expected:
            raise RuntimeError(f"{len(batch)} of {expected} responses arrived in step {self.global_steps}")

    def _balance_batch(self, batch: KVBatchMeta, metrics: Any, **_: Any) -> KVBatchMeta:
        """Record the rows of the run's order, then deal them to the ranks mini-batch by mini-batch.

        verl deals the whole batch at once: which rows form a mini-batch would depend on the number of ranks.
        """
        actor, n = self.config.actor_rollout_ref.actor, int(self.config.actor_rollout_ref.rollout.n)
        self._in_order(batch, int(self.config.data.train_batch_size) * n)
        self._now.row_of = {key: row for row, key in enumerate(batch.keys)}
        batch.fields = [*workers.READ]
        size = min(int(actor.ppo_mini_batch_size) * n, len(batch))
        batch.reorder(deal([tag["seq_len"] for tag in batch.tags], size, self._ranks()))
        return batch

    def _ranks(self) -> int:
        """The number of data-parallel ranks of the policy."""
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return int(max(group._dispatch_info["actor"])) + 1

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: Any) -> KVBatchMeta:
        batch.extra_info.update(
            calculate_entropy=True,
            calculate_sum_pi_squared=True,
            compute_loss=False,
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )
        self.actor_rollout_wg.compute_log_prob(batch)
        names = {"old_log_probs": "log_probs", "entropy": "entropy", "collision": "sum_pi_squared"}
        return self._put(batch, self._of_responses(batch, names))

    def _of_responses(self, batch: KVBatchMeta, names: Mapping[str, str]) -> dict[str, Tensor]:
        """The responses' part, nested, of what the ranks wrote. names: name in the result -> the ranks' name."""
        fields = [*names.values(), "response_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        return {column: response_from_nested(data[name], data["response_mask"]) for column, name in names.items()}

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: Any) -> KVBatchMeta:
        if self._now.reads_reference:
            batch = super()._compute_ref_log_prob(batch, metrics)
        if self._method.section["sampler"] == "rejection":
            self.actor_rollout_wg.compute_target_log_prob(batch)
            self._put(batch, self._of_responses(batch, {"target_log_prob": "log_probs"}))
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: Any) -> KVBatchMeta:
        """Pass the whole batch, padded and in the run's order, to `methods.update`; store the columns for the ranks."""
        now = self._now
        names = ["rm_scores", "rollout_log_probs", "old_log_probs", "entropy", "collision"]
        names += ["ref_log_prob"] * now.reads_reference
        rejects = self._method.section["sampler"] == "rejection"
        names += ["target_log_prob"] * rejects + ["values"] * self.use_critic
        fields = ["response_mask", *names]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        nested = data["response_mask"]
        padded = data.to_padded_tensor()
        order = torch.tensor(sorted(range(len(batch)), key=lambda i: now.row_of[batch.keys[i]]))
        mask = padded["response_mask"][order].bool()
        columns = {name: padded[name][order].float() * mask for name in names}
        now.trained_pairs, reference = self._task_pairs(now) if now.pairs is not None else (None, None)
        scored = now.scored = Scored(
            mask=mask,
            rewards=columns["rm_scores"].sum(dim=1),
            group=torch.arange(len(batch)) // int(self.config.actor_rollout_ref.rollout.n),
            old=columns["old_log_probs"],
            reference=columns.get("ref_log_prob"),
            behaviour=columns["rollout_log_probs"],
            entropy=columns["entropy"],
            collision=columns["collision"],
            values=columns.get("values"),
            pair_reference=reference,
        )
        keys = sorted(batch.keys, key=now.row_of.__getitem__)
        extra = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        updates = now.update = update(self._method, scored, self.global_steps)
        now.values |= rewards.metrics(_scores(extra)) | updates.metrics
        if self._compares and self._method.section["sampler"] not in registry.WITH_TARGET:
            now.values |= probability_differences(scored.old, scored.behaviour, mask)
        if rejects:  # which rows of the run's order rejection sampling towards the target keeps
            draw = draws.keys(int(self.config.data.seed), "accept", self.global_steps, range(len(mask)))
            old, target = columns["old_log_probs"], columns["target_log_prob"]
            now.kept = draws.accepted(old, target, mask, int(self.config.actor_rollout_ref.rollout.n), draw)
            now.values["rejection/accepted_fraction"] = float(now.kept.float().mean())
        if self._method.section["loss"] == "dpo":
            if updates.policy is not None:
                if updates.rows is not None:
                    chosen = [keys[row] for row in updates.rows.tolist()]
                    now.trained_pairs = _pairs_of_rows(self.global_steps, batch, chosen)
                    self._set_pairs(now.trained_pairs)
                self._put_pairs(now.trained_pairs, updates.policy)
            return batch
        inverse = order.argsort()
        stored = ("old_log_probs", "ref_log_prob", "values")  # the queue has these already
        new = {**(updates.policy or {}), **(updates.critic or {})}
        written = {name: response_to_nested(x[inverse], nested) for name, x in new.items() if name not in stored}
        return self._put(batch, written) if written else batch

    def _update_critic(self, batch: KVBatchMeta, metrics: Any) -> KVBatchMeta:
        """Train the critic, if the step does; the metrics are means over its mini-batches."""
        now, scored, updates = self._now, self._now.scored, self._now.update
        if updates.critic is None:
            return batch
        self._set_updates(batch, int(self.config.actor_rollout_ref.rollout.n), int(scored.mask.sum()))
        rate = self.critic_wg.learning_rate()[0]
        output = self.critic_wg.train_mini_batch(batch).get()
        now.values |= {**_means("critic", output["metrics"]), "critic/lr": rate}
        now.values |= explained_variance(updates.critic["returns"], updates.critic["values"], scored.mask)
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: Any) -> KVBatchMeta:
        """Train the policy, if the step does; the metrics are means over its mini-batches."""
        now, scored, updates = self._now, self._now.scored, self._now.update
        if updates.policy is None:
            return batch
        trained, rows = batch, int(self.config.actor_rollout_ref.rollout.n)
        if now.trained_pairs is not None:
            trained, rows = now.trained_pairs, 2
            tokens = sum(int(tag["response_len"]) for tag in trained.tags)
        elif now.kept is not None:
            trained = self._with_kept(batch, now.kept)
            tokens = int((scored.mask & now.kept[:, None]).sum())
        else:
            tokens = int(scored.mask.sum())
        now.values["actor/lr"] = self.actor_rollout_wg.learning_rate()[0]  # verl reports the one of the next update
        self._set_updates(trained, rows, tokens)
        output = self.actor_rollout_wg.update_actor(trained)
        now.values |= policy_loss.finish(_means("actor", output["metrics"]))
        if self._grad_variance and (variance := self.actor_rollout_wg.take_grad_variance()[0]) is not None:
            now.values["actor/grad_variance"] = variance
        if now.trained_pairs is not None:
            tq.kv_clear(keys=now.trained_pairs.keys, partition_id=_PAIRS)
        return batch

    def _set_updates(self, batch: KVBatchMeta, rows: int, tokens: int) -> None:
        """Add what the ranks read beside columns; count trained tokens. rows: of each prompt; tokens: of an epoch."""
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        size = min(int(actor.ppo_mini_batch_size) * rows, len(batch))
        batch.extra_info.update(
            calculate_entropy=bool(actor.entropy_coeff),
            calculate_sum_pi_squared=False,
            global_batch_size=size,
            mini_batch_size=size,
            epochs=int(actor.ppo_epochs),
            seed=actor.data_loader_seed,
            dataloader_kwargs={"shuffle": False},
            temperature=rollout.temperature,
        )
        self._now.trained_tokens += tokens * int(actor.ppo_epochs)

    def _with_kept(self, batch: KVBatchMeta, kept: Tensor) -> KVBatchMeta:
        """The batch with empty masks in rows not kept. Each prompt keeps one at least, so no mini-batch is empty."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
        masks = zip(batch.keys, data["response_mask"].unbind(), strict=True)
        rows = [mask * bool(kept[self._now.row_of[key]]) for key, mask in masks]
        mask = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        return self._put(batch, {"response_mask": mask, "loss_mask": mask})

    # ------------------------------------------------------------ pairs of DPO

    def _task_pairs(self, step: Step) -> tuple[KVBatchMeta, Tensor]:
        """Store the task's pairs for P prompts; return the rows and the reference's log-probabilities, (2 P, T)."""
        prompts = [prompt.tokens for prompt in step.prompts for _ in range(2)]
        batch = _pairs(self.global_steps, prompts, step.pairs)
        self._set_pairs(batch)
        PPOTrainerSync._compute_ref_log_prob(self, batch, {})
        names = ["ref_log_prob", "response_mask"]
        data = tq.kv_batch_get(keys=sorted(batch.keys), partition_id=batch.partition_id, select_fields=names)
        padded = data.to_padded_tensor()
        return batch, padded["ref_log_prob"].float() * padded["response_mask"]

    def _set_pairs(self, batch: KVBatchMeta) -> None:
        """Deal the pairs to the ranks, and have both rows of a pair in one micro-batch."""
        actor, ranks = self.config.actor_rollout_ref.actor, self._ranks()
        size = 2 * min(int(actor.ppo_mini_batch_size), len(batch) // 2)
        batch.reorder(deal([tag["seq_len"] for tag in batch.tags], size, ranks, 2))
        if actor.use_dynamic_bsz:
            batch.extra_info["force_group_size"] = 2
        else:
            batch.extra_info["micro_batch_size_per_gpu"] = min(int(actor.ppo_micro_batch_size_per_gpu), size // ranks)

    def _put_pairs(self, batch: KVBatchMeta, columns: Mapping[str, Tensor]) -> None:
        """Store columns of the pairs, in the order of their keys: (2 P, T) of tokens, padded, or (2 P,) of rows."""
        keys = sorted(batch.keys)
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["response_mask"])
        fields = {
            name: response_to_nested(x, data["response_mask"]) if x.dim() == 2 else x for name, x in columns.items()
        }
        tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(keys)))

    def _put(self, batch: KVBatchMeta, columns: Mapping[str, Tensor]) -> KVBatchMeta:
        """Store columns, in the batch's order; return the batch with the columns that ranks read."""
        fields = TensorDict(dict(columns), batch_size=len(batch))
        written = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        written.fields = [*workers.READ]
        return written


def _pairs(step: int, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> KVBatchMeta:
    """Store rows of prompt and answer as verl's agent loops do, and return them; the rows of a pair are adjacent."""
    first, second = ([torch.tensor(list(row)) for row in rows] for rows in (prompts, answers))
    both = [torch.cat(row) for row in zip(first, second, strict=True)]
    mask = _nested([torch.ones_like(row) for row in second])
    columns = {
        "prompts": _nested(first),
        "responses": _nested(second),
        "input_ids": _nested(both),
        "position_ids": _nested([torch.arange(len(row)) for row in both]),
        "response_mask": mask,
        "loss_mask": mask,
    }
    keys = [f"pair-{step:08d}-{row:06d}" for row in range(len(both))]
    tags = [{"seq_len": len(row), "response_len": len(response)} for row, response in zip(both, second, strict=True)]
    fields = TensorDict(columns, batch_size=len(keys))
    tq.kv_batch_put(keys=keys, partition_id=_PAIRS, fields=fields, tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id=_PAIRS)  # without fields: all columns, also later ones


def _pairs_of_rows(step: int, batch: KVBatchMeta, keys: Sequence[str]) -> KVBatchMeta:
    """`_pairs` of the responses of a batch with these keys, chosen and rejected in turn; a key may be there twice."""
    names = sorted(set(keys))
    fields = ["prompts", "responses"]
    data = tq.kv_batch_get(keys=names, partition_id=batch.partition_id, select_fields=fields)
    rows = {name: [data[field][place].tolist() for field in fields] for place, name in enumerate(names)}
    return _pairs(step, [rows[key][0] for key in keys], [rows[key][1] for key in keys])


def _nested(rows: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def _scores(data: Any) -> list[rewards.Score]:
    """What the reward function gave each row. data: with the column extra_fields."""
    return [reward.score_of(fields["reward_extra_info"]) for fields in data["extra_fields"]]


def _answer(name: str, actors: Sequence[Any]) -> bool:
    """Whether all of these actors answer within _ANSWER_S. Lost: one of them is dead."""
    try:
        ray.get([actor.__ray_ready__.remote() for actor in actors], timeout=_ANSWER_S)
    except ray.exceptions.GetTimeoutError:
        return False
    except ray.exceptions.RayActorError as error:
        details = " ".join(str(error).split()).partition(" Some common causes")[0]
        raise Lost(f"{name} died: {details}") from error
    return True


def deal(lengths: Sequence[int], size: int, ranks: int, unit: int = 1) -> list[int]:
    """The order in which each of `ranks` equal parts is a rank's, and the k-th pieces of all parts are mini-batch k.

    lengths: of all rows, in the run's order; size: rows of a mini-batch, a multiple of `ranks` times `unit`; unit:
    adjacent rows that stay together. A mini-batch is dealt longest first, there and back (to ranks 0, 1, 1, 0, 0 and
    so on), so that the ranks have about equal work. Returns indices of rows.
    """
    mine: list[list[int]] = [[] for _ in range(ranks)]
    for first in range(0, len(lengths), size):
        part = [range(row, row + unit) for row in range(first, min(first + size, len(lengths)), unit)]
        if ranks > 1:
            part.sort(key=lambda rows: (-sum(lengths[row] for row in rows), rows[0]))
        for place, rows in enumerate(part):
            turn, at = divmod(place, ranks)
            mine[at if turn % 2 == 0 else ranks - 1 - at] += rows
    return [row for rank in mine for row in rank]


def _place(key: str) -> tuple[int, int, int]:
    """The numbers of prompt, response and part in a key that verl made of our uid: UID_RESPONSE_PART."""
    uid, session, part = key.rsplit("_", 2)
    return int(uid.rsplit("-", 1)[1]), int(session), int(part)


def _means(model: str, reported: Mapping[str, Any]) -> dict[str, float]:
    """Means over mini-batches of what a model's ranks reported, by the names of docs/metrics.md.

    verl's own reduction takes a maximum or a minimum instead if the name has such a word.
    """
    means = {}
    for name, value in reported.items():
        if name == "grad_norm" or ("/" in name and not name.startswith("perf/")):
            values = value if isinstance(value, list) else [value]
            numbers = np.ravel([value.aggregate() if isinstance(value, Metric) else value for value in values])
            means[f"{model}/grad_norm" if name == "grad_norm" else name] = float(numbers.mean())
    return means
