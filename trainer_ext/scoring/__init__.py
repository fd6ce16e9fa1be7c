"""Tasks, and what responses to them are worth.

scores          what an evaluation says: metrics of responses to fixed prompts, and further scores of them
tasks           prompts and their splits, demonstrations and rewards
reward_models   models that give responses their rewards, and how they are trained
rewards         what reward functions return: of texts, of generated code, and those that a configuration names
sandbox         runs programs that a model wrote, with tests, where they can harm nothing
artifacts       files that runs share, such as models; the first run that needs one builds it
"""
