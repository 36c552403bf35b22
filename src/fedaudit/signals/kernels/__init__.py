"""Exact per-sample gradient products, by type of layer.

A kernel takes what entered a layer and the gradient at what left it, for a chunk of samples,
and gives that layer's share of every inner product with an update and of every squared norm.
The per-sample gradients themselves exist only in blocks that fit a processor's cache.
"""
