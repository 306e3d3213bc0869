"""Fela's token scheduling (Geng et al., ICDE 2020): who computes which part of the model for which samples.

A model is cut into sub-models SM-1 to SM-M. A token is the computation of one sub-model for some samples, forward or backward.
Workers ask for tokens, so fast ones compute more; each sub-model has its own batch size.

    shape.py       how many tokens an iteration has at each level
    policies.py    which worker may compute which sub-model: Fela, and data, hybrid and model parallelism as the same thing
    iteration.py   the tokens of one iteration, made as the ones that they need complete
    buckets.py     where tokens wait, and which one a worker gets
    tuning.py      weights and subset, found while training
    partition.py   which layers make up a sub-model
    server.py      the token server: reports of workers in, orders to workers out
    stragglers.py  workers that sleep, for experiments
"""
