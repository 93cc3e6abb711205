"""PyTorch checkpoints → named tensors: the archive, its pickle, and where the data lies."""
