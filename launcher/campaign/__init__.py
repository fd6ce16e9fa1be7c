"""Campaigns: experiments in stages, which the hypotheses of the stages before let start.

`launcher.planning.campaign_stages` has the files of conf/campaign and their plans.
Its modules:

    campaign    one launch of a campaign
    decisions   what the reports of a stage say of its gate, and of levels that later stages take
    forecast    what the stages cost, and what each gate needs, for people
"""
