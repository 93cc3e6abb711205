"""The change of a matrix written plainly from METHOD §10, in NumPy, from float64 copies."""

import numpy as np

from tests.reference.evbmf_reference import reference_evbmf


def reference_change(base, tuned):
    """Returns n', ‖ΔW‖/‖W‖ and the share of ‖ΔW‖² in the n' largest singular values.

    Both are matrices of outputs × all other axes.
    """
    base, tuned = (np.asarray(side, dtype=np.float64) for side in (base, tuned))
    change = tuned - base
    kept, _ = reference_evbmf(change)
    rank = len(kept)
    u, s, vh = np.linalg.svd(change, full_matrices=False)
    adapter = (u[:, :rank] * s[:rank]) @ vh[:rank]
    rest = np.sum((change - adapter) ** 2) / np.sum(change**2)
    return rank, np.sqrt(np.sum(change**2) / np.sum(base**2)), 1 - rest
