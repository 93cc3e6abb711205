"""Measured networks for tests, made up without weights."""

from pathlib import Path

from rankwise.study.zoo.networks import Network, Zoo
from rankwise.study.zoo.scores import SCORES, MeasuredNetwork


def measured(number, accuracy, scores=0.0, *, family="f", train=None, group=None, **changes):
    """A network all of whose scores are one number, or those of a mapping."""
    values = scores if isinstance(scores, dict) else dict.fromkeys(SCORES, scores)
    name = changes.pop("name", f"{family}-{number}.pt")
    network = Network(name, Path(name), accuracy, train, family, group or name)
    fields = {
        "qualities": {"conv": accuracy, "fc": -accuracy},
        "shapes": (("conv", (4, 4)), ("fc", (4, 4))),
        "rank_one": 1,
        "empty": 0,
        "modes": 4,
        "rank_one_widths": (8,) * (number % 4),
    }
    return MeasuredNetwork(network, dict.fromkeys(SCORES) | values, **{**fields, **changes})


def zoo(members, **changes):
    fields = {
        "source": "index.csv",
        "networks": tuple(member.network for member in members),
        "skipped": (),
        "columns": {"checkpoint": "file"},
    }
    return Zoo(**{**fields, **changes})
