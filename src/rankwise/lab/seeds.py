"""Seeds: every random choice of a run follows from the run's seed and its place in the run.

No generator lives longer than a batch, so there is no random state to save: whoever knows the
epoch and the batch knows every draw, on any number of processes.
"""

import hashlib

import torch

__all__ = ["generator_for", "seed_for"]


def seed_for(*place: int | str) -> int:
    """A seed of 63 bits for a place, such as `(seed, "order", epoch)`."""
    text = "\0".join(map(str, place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(*place: int | str) -> torch.Generator:
    """A generator on the CPU, freshly seeded for a place."""
    return torch.Generator().manual_seed(seed_for(*place))
