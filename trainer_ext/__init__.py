"""What one run computes. It uses neither the scheduler nor other runs.

Its rooms, the highest rank first. A module imports only from its own room and from rooms below it (docs/code.md):

    application     what the launcher asks: checks, verl's tree, method parts, prices
    train           one run, from its configuration to its summary
    backends        one folder for each way to run verl, and what runs of verl and vLLM alone load
    fits            whether a run fits on its devices, by arithmetic: sizes, memory, architectures
    scoring         tasks and what responses to them are worth: rewards, reward models, the sandbox, evaluations
    methods         the parts of methods, as pure functions of tensors; the health of a run; continued runs
    metrics         the analysis metrics of a step
    sampling        optimal sampling: alpha, the geometric family, speculative sampling
    registry        the choices of each part of a method, registered by decorator
    objection       why a run could not start
"""
