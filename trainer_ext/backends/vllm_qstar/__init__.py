"""q* in vLLM: a model of two towers, the policy and the target, whose next-token distribution is q*.

vLLM gives both towers their key-value cache, its batches and its tensor parallelism. docs/qstar.md says how to use it.
"""

#: The model's name in vLLM.
ARCHITECTURE = "QStarForCausalLM"


def register() -> None:
    """Make the model known to vLLM: the entry point of `vllm.general_plugins`, which each of its processes calls."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"{__name__}.model:{ARCHITECTURE}")
