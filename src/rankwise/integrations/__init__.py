"""Trainers and loggers of other packages; each module needs the extra of its name."""
