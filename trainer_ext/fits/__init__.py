"""Whether a run fits on its devices, by arithmetic and the files of its models, before it starts.

Its modules:

    sizes           which sizes of a run do not fit together, and what a vLLM server cannot do for it
    memory          how much memory a run needs
    rank_memory     how much memory a rank of trainer=verl_ray needs, and whether it has so much
    devices         on what a run computes, and how its processes share a model
    chat            how many tokens the messages of a prompt are
    architectures   the sizes of causal language models, and which of them can be trained
"""
