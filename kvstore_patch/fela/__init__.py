"""Training with tokens (Geng et al., ICDE 2020) on Gluon: workers compute parts of the model for parts of the samples.

gradients.py  sums over the tokens that this worker computed
chunks.py     what computed tokens left here
compute.py    tokens on blocks
"""
