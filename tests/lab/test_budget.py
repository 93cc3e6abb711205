"""How long a run goes on."""

import re

import pytest

from rankwise.lab import ConfigError
from rankwise.lab.budget import Budget, Seconds, parse_budget


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1.5h", 5400),
        (" 10 minutes ", 600),
        ("1 hour 2 mins 3 sec", 3723),
        ("1 day", 86400),
    ],
)
def test_a_time_is_so_many_seconds(text, seconds):
    assert parse_budget(text) == Seconds(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        ("wall clock of 250 SGD epochs", 250),
        ("Wall-Clock of 1 sgd epoch", 1),
        ("wallclock of 3 SGD epochs", 3),
        ("25 SGD epochs", 25),
    ],
)
def test_a_time_may_be_that_of_epochs_of_sgd(text, epochs):
    assert parse_budget(text) == Seconds(sgd_epochs=epochs)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "0s",
        "0 SGD epochs",
        "-5m",
        "10",
        "10 parsecs",
        "10 ms",
        "10 months",
        "10 sgd",
        "5 SGD steps",
        "1e3s",
        "10m and a bit",
        "m",
        "inf s",
        "250 epochs",
        "wall clock of SGD epochs",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError, match=re.escape(f"got {text!r}.")):
        parse_budget(text)


def test_progress_by_epochs_counts_their_parts():
    budget = Budget(epochs=4, seconds=None)
    assert [budget.progress(*place, spent=1e9) for place in ((0, 0.0), (1, 0.5), (4, 0.0))] == [
        0.0,
        0.375,
        1.0,
    ]


def test_progress_by_time_counts_seconds_alone():
    budget = Budget(epochs=None, seconds=8.0)
    assert [budget.progress(7, 0.3, spent) for spent in (0.0, 2.0, 8.0, 10.0)] == [0, 0.25, 1, 1.25]
