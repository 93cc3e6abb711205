"""Mutated checkpoints of every format, and what must not happen when they are read.

`python -m tests.fuzz` runs as many as you like; `test_fuzz.py` runs 2,000 with every `make test`.
"""
