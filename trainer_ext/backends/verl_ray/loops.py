"""Agent loops whose draws have keys, which server answers them, and the rewards of responses."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.workers.rollout.llm_server import LLMServerClient

from trainer_ext.backends.verl_ray import servers, shared
from trainer_ext.sampling import draws
from trainer_ext.scoring.rewards import SCORE


class RowClient(LLMServerClient):
    """Sends each response to the server of its row: a server then draws the same batch whenever a step is repeated.

    verl takes the server that has least to do at that moment, or one by chance.
    """

    async def _acquire_server(self, request_id: str, **given: Any) -> tuple[str, Any]:
        trainer, tensor = self.config.trainer, self.config.actor_rollout_ref.rollout.tensor_model_parallel_size
        replicas = int(trainer.n_gpus_per_node) * int(trainer.nnodes) // int(tensor)
        name = servers.server_name(given["sampling_params"]["row"] % replicas)
        return name, ray.get_actor(name)

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Nobody counts."""


class _KeyedWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's worker of agent loops; each response gets the key of its draws, and its failure is remembered.

    It computes the rewards, in threads: verl's reward workers are processes of their own, which import verl.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._reward = get_custom_reward_fn(self.config)

    def _scored(self, tokens: list[int], row: dict[str, Any]) -> dict[str, float]:
        """What the reward function returns for the response of a row."""
        return self._reward(
            data_source=row["data_source"],
            solution_str=self.tokenizer.decode(tokens, skip_special_tokens=True),
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info=row["extra_info"],
        )

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: Any, *, agent_name: str, trace: bool = True, **kwargs: Any
    ) -> None:
        """One turn from a prompt's tokens, which the trainer gives: every backend then has the same prompts.

        verl would make an agent loop of its own for each response, from its configuration.
        """
        rollout, purpose, session = self.config.actor_rollout_ref.rollout, kwargs["purpose"], int(kwargs["session_id"])
        evaluating = purpose == "evaluate"
        row = int(kwargs["index"]) * int(rollout.val_kwargs.n if evaluating else rollout.n) + session
        key = draws.key(int(rollout.seed), purpose, int(kwargs["global_steps"]), row)
        # `seed` is also a field of vLLM's sampling parameters
        params = {**sampling_params, "seed": key, "row": row, "purpose": purpose, "greedy": evaluating and session == 0}
        prompt = [int(token) for token in kwargs["prompt_tokens"]]
        try:
            drawn = await self.llm_client.generate(request_id=uuid4().hex, prompt_ids=prompt, sampling_params=params)
            returned = await asyncio.to_thread(self._scored, drawn.token_ids, kwargs)
            output = AgentLoopOutput(
                prompt_ids=prompt,
                response_ids=drawn.token_ids,
                response_mask=[1] * len(drawn.token_ids),
                response_logprobs=drawn.log_probs,
                metrics={},
                reward_score=returned[SCORE],
                extra_fields={**drawn.extra_fields, "reward_extra_info": returned},
            )
            await self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)
        except Exception as error:
            cause = getattr(error, "cause", None) or error
            text = f"row {row}: {type(cause).__name__}: {cause}"
            await ray.get_actor(servers.server_name(0)).failed.remote(text, isinstance(cause, FloatingPointError))
            raise


class KeyedLoops(AgentLoopManagerTQ):
    """verl's manager of agent loops over our workers."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = shared.placed(ray.remote(_KeyedWorker))
