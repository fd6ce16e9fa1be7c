"""Methods as compositions of parts: pure functions over tensors.

Its modules:

    update               the order in which a step applies the parts
    advantage            advantages from rewards
    credit               weights of the tokens of a response, which multiply its advantages
    control              prices on entropy and on KL to the reference
    importance_weights   weights of tokens that were drawn from another distribution
    ratio                importance ratios, smoothed or one for each response
    trust_region         the surrogate loss of each token from its ratio
    policy_loss          the surrogate loss, put together from its parts
    preference           preference pairs and their loss
    losses               the losses that verl's engines call
"""
