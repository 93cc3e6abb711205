"""Measure every weight of a network, and present what was measured."""
