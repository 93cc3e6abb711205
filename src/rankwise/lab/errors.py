"""What the lab raises on purpose.

rankwise.RankwiseError
├── ConfigError      (also a ValueError) an option that is unknown or out of its range
├── DataError        a data set that is missing or can't be read
└── RunError         a run that can't be started, or can't go on
"""

import rankwise

__all__ = ["ConfigError", "DataError", "RunError"]


class ConfigError(rankwise.RankwiseError, ValueError):
    """An option is unknown or out of its range; the message says what was expected."""


class DataError(rankwise.RankwiseError):
    """A data set is missing or broken; the message says where to put it or what is wrong."""


class RunError(rankwise.RankwiseError):
    """A run can't be started or can't go on; the message says what is safe and what to do."""
