"""Networks whose accuracy is known, and how well numbers from their weights rank them.

A table of checkpoints, or runs → networks → scores → coefficients → words.
"""
