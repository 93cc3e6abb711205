"""How well numbers from the weights rank networks whose accuracy is known.

A table of checkpoints, or runs → networks → scores → ranking (correlations) → verdict.
"""
