"""Which of two responses is better, by a judge: a language model, a score of the responses, or people.

Its modules:

    commands    the program `python -m analysis judge`
    asking      asks a language model about all pairs, within a budget
    endpoint    one request to a server that speaks OpenAI's protocol
    rating      a page on which people choose, and their answers
    results     win rates, strengths, bias and agreement of an experiment's judges
    journal     what a language model was asked and has answered: never twice
    pairs       which responses are compared
    declared    the judges of an experiment, as its folder keeps them
    settings    what `judge.KEY=VALUE` sets
"""
