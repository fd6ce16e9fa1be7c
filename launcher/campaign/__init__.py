"""Campaigns: experiments in stages, which the hypotheses of the stages before let start."""
