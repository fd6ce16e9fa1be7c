"""Optimal sampling: the geometric family between two policies, the choice of alpha, and sampling. Pure functions.

Its modules:

    proposal      the distribution to draw the next token from
    geometric     the geometric family
    alpha         the choice of alpha
    roots         roots in [0, 1], many rows at once
    draws         random numbers with a key for each response
    speculative   draft, verify, correct
"""
