"""Trainers and loggers of others; each file here needs the extra of its own name."""
