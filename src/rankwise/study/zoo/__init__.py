"""How well numbers from the weights rank networks whose accuracy is known.

A table of checkpoints, or runs → networks → scores → correlations → verdict.
"""

from rankwise.study.zoo.networks import Columns, Network, Zoo, read_run_networks, read_table
from rankwise.study.zoo.ranking import Family, Ranking, ScoreCorrelation, rank_networks
from rankwise.study.zoo.scores import SCORES, Score

__all__ = [
    "SCORES",
    "Columns",
    "Family",
    "Network",
    "Ranking",
    "Score",
    "ScoreCorrelation",
    "Zoo",
    "rank_networks",
    "read_run_networks",
    "read_table",
]
