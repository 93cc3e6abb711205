"""Stored tensors → the weights that a network computes with."""
