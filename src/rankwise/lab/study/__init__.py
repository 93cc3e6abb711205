"""Studies: a grid of runs, trained on all cores or on a cluster, and what came out of it."""
