"""What one run computes. It uses neither the scheduler nor other runs.

Its rooms, the highest rank first. A module imports only from its own room and from rooms below it (docs/code.md):

    application     what the launcher asks: checks, verl's tree, method parts, prices
    train           one run, from its configuration to its summary
    backends        one folder for each way to run verl
    plugin          the losses, estimators and analysis metrics for runs of verl itself
    vllm_qstar      a model for vLLM that draws from q*, the policy and the target beside each other
    methods         the parts of methods, as pure functions of tensors
    sampling        optimal sampling: alpha, the geometric family, speculative sampling
    scores          further scores of responses to test prompts
    bertscore       how similar two texts are to an encoder
    evaluation      what the policy's responses to fixed prompts say: metrics, and the best evaluation
    tasks           prompts and their splits, demonstrations and rewards
    reward_models   models that give responses their rewards, and how they are trained
    artifacts       files that runs share, such as models; the first run that needs one builds it
    price           how long a step of a run takes, by arithmetic
    rank_memory     how much memory a rank of trainer=verl_ray needs, by arithmetic, and whether it has so much
    chat            how many tokens the messages of a prompt are
    sizes           which sizes of a run do not fit together, and what a vLLM server cannot do for it
    devices         on what a run computes, and how its processes share a model
    memory          how much memory a run needs, by arithmetic
    architectures   the sizes of causal language models, and which of them can be trained
    continuing      what a run that continues another one shares with it
    metrics         the analysis metrics of a step
    health          checks of each step's metrics: divergence and warnings
    unit_tests      the reward of generated code: it passes unit tests
    rewards         what reward functions return, and functions that a configuration names
    texts           words of texts, and how texts differ from each other
    sandbox         runs programs that a model wrote, with tests, where they can harm nothing
    objection       why a run could not start
    registry        the choices of each part of a method, registered by decorator
"""
