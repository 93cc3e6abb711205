"""Networks whose accuracy is known, and how well numbers from their weights rank them.

A table of checkpoints, or runs → networks → scores → coefficients → words.
"""

from rankwise.study.zoo.networks import Columns, Network, Zoo
from rankwise.study.zoo.rank import rank_networks
from rankwise.study.zoo.ranking import Family, Ranked, Ranking
from rankwise.study.zoo.runs import read_runs
from rankwise.study.zoo.scores import SCORES, Score
from rankwise.study.zoo.table import read_table

__all__ = [
    "SCORES",
    "Columns",
    "Family",
    "Network",
    "Ranked",
    "Ranking",
    "Score",
    "Zoo",
    "rank_networks",
    "read_runs",
    "read_table",
]
