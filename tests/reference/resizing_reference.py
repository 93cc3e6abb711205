"""Shrinking a LoRA the slow way: form the product, and truncate its decomposition."""

import numpy as np


def truncate(product, error):
    """Return the least rank whose error is at most a share of ‖Δ‖², and the nearest matrix."""
    u, s, v = np.linalg.svd(np.asarray(product, dtype=np.float64), full_matrices=False)
    total = sum(value * value for value in s)
    for rank in range(len(s) + 1):
        if sum(value * value for value in s[rank:]) <= error * total:
            return rank, (u[:, :rank] * s[:rank]) @ v[:rank]
    raise AssertionError("the full rank has no error")
