"""What one run computes. It uses neither the scheduler nor other runs.

Its rooms, the highest rank first. A module imports only from its own room and from rooms below it (docs/code.md):

    application     what the launcher asks: checks, verl's tree, method parts, prices
    train           one run, from its configuration to its summary
    backends        one folder for each way to run verl
    plugin          the losses, estimators and analysis metrics for runs of verl itself
    vllm_qstar      a model for vLLM that draws from q*, the policy and the target beside each other
    fits            whether a run fits on its devices, by arithmetic: sizes, memory, architectures
    scores          what an evaluation says: metrics of responses to fixed prompts, and further scores of them
    tasks           prompts and their splits, demonstrations and rewards
    reward_models   models that give responses their rewards, and how they are trained
    rewards         what reward functions return: of texts, of generated code, and those that a configuration names
    sandbox         runs programs that a model wrote, with tests, where they can harm nothing
    methods         the parts of methods, as pure functions of tensors; the health of a run; continued runs
    metrics         the analysis metrics of a step
    sampling        optimal sampling: alpha, the geometric family, speculative sampling
    artifacts       files that runs share, such as models; the first run that needs one builds it
    registry        the choices of each part of a method, registered by decorator
    objection       why a run could not start
"""
