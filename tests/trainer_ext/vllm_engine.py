"""Asks a vLLM engine that draws from q*: `python -m tests.trainer_ext.vllm_engine QUESTIONS ANSWERS`, both JSON.

It runs with the Python of .venv-vllm, which has neither verl nor pytest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vllm import LLM, EngineArgs, SamplingParams

from trainer_ext.backends.vllm_qstar.settings import check_engine, engine_arguments


def drawn(llm: Any, questions: Mapping[str, Any], rows: list[int]) -> list[dict[str, Any]]:
    """Responses to these prompts, each with a seed of its own: the tokens, and the reported log-probabilities."""
    same = {"temperature": questions["arguments"]["temperature"], "max_tokens": questions["length"], "logprobs": 0}
    parameters = [SamplingParams(seed=100 + row, detokenize=False, ignore_eos=True, **same) for row in rows]
    prompts = [{"prompt_token_ids": questions["prompts"][row]} for row in rows]
    found = [output.outputs[0] for output in llm.generate(prompts, parameters, use_tqdm=False)]
    return [
        {
            "row": row,
            "tokens": list(one.token_ids),
            "log_probs": [place[token].logprob for token, place in zip(one.token_ids, one.logprobs, strict=True)],
        }
        for row, one in zip(rows, found, strict=True)
    ]


def refusal(ask: Callable[[], Any]) -> str:
    """The message of the exception."""
    try:
        ask()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def refused_engine(arguments: Mapping[str, Any]) -> str:
    """Why an engine with these arguments, which `engine_arguments` has not checked, does not start."""
    return refusal(lambda: check_engine(EngineArgs(**arguments).create_engine_config()))


def answers_to(questions: Mapping[str, Any]) -> dict[str, Any]:
    arguments = engine_arguments(**questions["arguments"], **questions["engine"])
    overrides = arguments["hf_overrides"]
    towards_other = {**overrides, "qstar": {**overrides["qstar"], "target": questions["other"]}}
    engines = {name: {**arguments, name: value} for name, value in questions["wrong_engines"].items()}
    engines["target"] = {**arguments, "hf_overrides": towards_other}
    answers: dict[str, Any] = {"engines": {name: refused_engine(wrong) for name, wrong in engines.items()}}

    llm = LLM(**arguments)
    rows = list(range(len(questions["prompts"])))
    answers["before"] = llm.collective_rpc("qstar_metrics")
    answers["first"] = drawn(llm, questions, rows)
    answers["metrics"] = llm.collective_rpc("qstar_metrics")
    answers["again"] = drawn(llm, questions, rows[:-8:-1])

    def request(**values: Any) -> None:
        usual = {"temperature": questions["arguments"]["temperature"], "max_tokens": 2}
        llm.generate([{"prompt_token_ids": [5, 6]}], SamplingParams(**{**usual, **values}), use_tqdm=False)

    wrong_requests = questions["wrong_requests"].items()
    answers["requests"] = {name: refusal(partial(request, **{name: value})) for name, value in wrong_requests}

    llm.collective_rpc("qstar_load_policy", args=(questions["update"],))
    llm.reset_prefix_cache()
    answers["updated"] = drawn(llm, questions, rows)
    answers["temperature"] = refusal(partial(request, temperature=0.5))  # the last one: it ends the engine
    return answers


if __name__ == "__main__":
    asked, told = map(Path, sys.argv[1:])
    told.write_text(json.dumps(answers_to(json.loads(asked.read_text()))))
