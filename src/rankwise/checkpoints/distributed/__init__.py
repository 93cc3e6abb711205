"""PyTorch distributed checkpoints → named tensors: the metadata, the pieces, the whole tensors."""
