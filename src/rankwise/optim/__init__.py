"""Optimizers and schedulers whose rate per layer follows the layer's stable rank."""
