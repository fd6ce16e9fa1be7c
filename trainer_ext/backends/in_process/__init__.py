"""verl's losses and optimizer in one process, with one model and no servers.

Its modules:

    trainer         one step: sampling, scoring, advantages, updates
    engine          the policy in training, and a critic
    rollout         the responses and rewards of a step
    sampler         sampling and scoring with a Hugging Face module
    speculative     speculative decoding with two models
    batch           the responses of a step, padded
    prompts         the prompts of a run in order, and the random generators
    initial_model   the model that a run starts from
    target_model    target policies pi_t
    checkpoint      saves and loads weights, optimizer and state
    export          writes a trained model as a folder that transformers loads
    platform        verl on a CPU
"""

from trainer_ext.backends.in_process.export import export
from trainer_ext.backends.in_process.trainer import InProcess

__all__ = ["create", "export"]

create = InProcess
