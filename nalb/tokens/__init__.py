"""Fela's token scheduling (Geng et al., ICDE 2020): it decides which worker computes which part of the model for which samples.

A model is cut into sub-models SM-1 to SM-M. A token is the computation of one sub-model for some samples, forward or backward.
Workers ask for tokens, so fast ones compute more; each sub-model has its own batch size.

    shape.py       how many tokens an iteration has at each level
    policies.py    which worker may compute which sub-model: Fela, and data, hybrid and model parallelism as records of one kind
    iteration.py   the tokens of one iteration, each made when the tokens that it needs are computed
    buckets.py     the buckets where tokens wait, and the choice of the token that a worker gets
    tuning.py      the search for weights and subset while training
    partition.py   the cuts of a model's layers into sub-models
    server.py      the token server: reports of workers in, orders to workers out
    stragglers.py  workers that sleep, for experiments
"""
