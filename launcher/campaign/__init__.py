"""Campaigns: experiments in stages, which the hypotheses of the stages before let start.

Its modules:

    sweeper     what Hydra calls: it runs experiments, or a campaign
    campaign    one launch of a campaign
    stages      the files of conf/campaign, and the plans of their stages
    decisions   what the reports of a stage say of its gate, and of levels that later stages take
    forecast    what the stages cost, and what each gate needs, for people
"""
