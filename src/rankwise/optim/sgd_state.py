"""A state dict of torch.optim.SGD → one of RMSGD, whose buffers contain the rate (METHOD §5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rankwise.errors import ArgumentError
from rankwise.optim.param_groups import Group

_BUFFER = "momentum_buffer"


def convert_sgd_state(state_dict: dict[str, Any], groups: Sequence[Group]) -> dict[str, Any]:
    """Return a state dict that RMSGD can load; one that isn't of torch.optim.SGD as it is.

    SGD takes w ← w − η·b with b ← αb + g, RMSGD w ← w − b with b ← αb + ηg, so its b is η times
    SGD's: the next step is SGD's own, and all later ones too, while rates are constant.
    """
    saved = state_dict["param_groups"]
    if not _is_sgd(saved):
        return state_dict
    sizes, expected = ([len(g["params"]) for g in some] for some in (saved, groups))
    if sizes != expected:
        raise ArgumentError(
            f"Expected a state for {len(expected)} parameter groups, one for each layer, got one "
            f"of torch.optim.SGD with {len(sizes)}. Load the weights only, and begin with empty "
            "buffers; or build SGD on rankwise.layer_groups(model) before it is saved."
        )
    factors = {index: _to_number(g["lr"]) for g in saved for index in g["params"]}
    state = {
        index: {
            name: factors[index] * value
            if name == _BUFFER and value is not None and index in factors
            else value
            for name, value in entries.items()
        }
        for index, entries in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def _is_sgd(groups: Sequence[Group]) -> bool:
    """Return whether groups are those of torch.optim.SGD: RMSGD's have the rule's rate too."""
    return bool(groups) and all(
        "dampening" in group and "nesterov" in group and "base_rate" not in group
        for group in groups
    )


def _to_number(rate: float | Tensor) -> float:
    return float(rate.item() if isinstance(rate, Tensor) else rate)
