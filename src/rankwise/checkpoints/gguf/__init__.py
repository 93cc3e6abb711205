"""GGUF files → named tensors: the header, the blocks of quantised types, the parts of a model."""
