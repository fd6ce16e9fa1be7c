"""The backends: each folder here is one way to run verl, and passes tests/trainer_ext/test_backends.py.

    in_process   the run's own process
    verl_ray     verl's trainer and workers, under Ray
    vllm_qstar   a model for vLLM that draws from q*, the policy and the target beside each other
    plugin       the losses, estimators and analysis metrics for runs of verl itself
    protocol     what a backend does, and the one that a configuration names

vLLM and verl load modules of this package without the packages that a run needs, so this file imports nothing.
"""
