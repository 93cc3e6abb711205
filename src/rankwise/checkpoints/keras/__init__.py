"""Keras and HDF5 files → named tensors: the file, its layers, the layout of PyTorch."""
