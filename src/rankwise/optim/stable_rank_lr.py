"""StableRankLR: the per-layer rates of RMSGD for any other optimizer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from rankwise.optim.controls import Control, ControlState
from rankwise.optim.layerwise_lr import LayerwiseLR
from rankwise.optim.multipliers import GroupState
from rankwise.optim.param_groups import list_layers
from rankwise.optim.rules.annealed_stable_rank import AnnealedStableRank
from rankwise.optim.rules.stable_rank import (
    FLOOR,
    POWER,
    RATE,
    ZETA,
    StableRank,
    Variant,
    check_options,
    resolve_beta,
)

_RULE_OPTIONS = ("beta", "zeta", "floor", "reference", "epochs", "p")


class StableRankLR(LayerwiseLR):
    """Gives every parameter group the rate at which its layer is learning.

    For a layer whose stable rank grew by Δs in an epoch: m ← max(βm + (ζ/η_ref)·Δs, floor), and
    its rate is m times its first one. Build the optimizer on `layer_groups(model)`, so that each
    layer has a group; a group with several weights follows their mean stable rank, and one
    without any the mean of the others.

    This is `LayerwiseLR` with the rule `StableRank`, or `AnnealedStableRank`. Call `step()` at the
    end of each epoch; or after each step of the optimizer, with `steps_per_epoch`. A call without
    a step of the optimizer since the last update changes nothing, so trainers may call it too
    often. The first rates are the optimizer's own, and other schedulers that multiply rates
    compose with this one.

    Args:
        optimizer: Any optimizer of torch's kind.
        beta: As in `RMSGD`.
        zeta: As in `RMSGD`.
        floor: The lowest rate, as a share of the first one.
        reference: η_ref, the first rate at which this is the paper's rule.
        epochs: As in `RMSGD`.
        variant: As in `RMSGD`.
        p: As in `RMSGD`.
        steps_per_epoch: As in `LayerwiseLR`.
        control: As in `LayerwiseLR`.
        seed: As in `LayerwiseLR`.
        schedule: As in `LayerwiseLR`.
        include: As in `LayerwiseLR`.
        exclude: As in `LayerwiseLR`.
        share: As in `LayerwiseLR`.
        last_epoch: As in torch's schedulers.

    Raises:
        ArgumentError: If an option is out of range.

    Example:
        >>> import torch, rankwise
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
        >>> optimizer = torch.optim.AdamW(rankwise.layer_groups(net), lr=1e-3)
        >>> scheduler = rankwise.StableRankLR(optimizer, beta=0.9)
        >>> net(torch.randn(8, 20)).square().mean().backward()
        >>> _ = optimizer.step()
        >>> scheduler.step()
        >>> {name: round(rate, 6) for name, rate in scheduler.rates().items()}
        {'0': 0.0009, '1': 0.0009}
    """

    rule: StableRank | AnnealedStableRank

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        beta: float | None = None,
        zeta: float = ZETA,
        floor: float = FLOOR,
        reference: float = RATE,
        epochs: int | None = None,
        variant: Variant = "paper",
        p: float = POWER,
        steps_per_epoch: int | None = None,
        control: Control | None = None,
        seed: int = 0,
        schedule: LRScheduler | None = None,
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        share: bool = True,
        last_epoch: int = -1,
    ) -> None:
        beta = resolve_beta(beta, epochs, variant)
        options = (beta, zeta, floor, reference, epochs, p)
        super().__init__(
            optimizer,
            _make_rule(variant, dict(zip(_RULE_OPTIONS, options, strict=True))),
            steps_per_epoch=steps_per_epoch,
            control=control,
            seed=seed,
            schedule=schedule,
            include=include,
            exclude=exclude,
            share=share,
            last_epoch=last_epoch,
        )

    @property
    def beta(self) -> float | None:
        """β, as given or chosen by the number of epochs."""
        return self.rule.beta

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict()` returned, of an optimizer with the same groups."""
        if "rule" in state_dict:
            super().load_state_dict(state_dict)
        else:
            self._load_first_format(copy.deepcopy(state_dict))

    def _load_first_format(self, state: dict[str, Any]) -> None:
        """Load a state from before there were other rules: rates instead of multipliers."""
        options = {name: state.pop(name) for name in _RULE_OPTIONS}
        self.rule = _make_rule(state.pop("variant"), options)
        saved = state.pop("_layers")
        self._check_state(len(saved), type(self.rule).__name__)
        multipliers = [s["rate"] / s["initial"] if s["initial"] else 1.0 for s in saved]
        layers = {
            layer: members[0]
            for layer, members in list_layers(self.optimizer.param_groups).items()
            if members[0] < len(saved)
        }
        self._rule_state = type(self._rule_state)(
            {layer: multipliers[i] for layer, i in layers.items()},
            {layer: saved[i]["epoch"] for layer, i in layers.items()},
        )
        self._control_state = ControlState({n: multipliers[i] for n, i in layers.items()}, {})
        self._groups = [
            GroupState(m, m, m, s["stable_rank"], s["started"], s["stepped"])
            for m, s in zip(multipliers, saved, strict=True)
        ]
        self._watch.has_seen_steps |= any(s["started"] for s in saved)
        self.__dict__.update(state)
        self._probe, self._readings = None, ()


def _make_rule(variant: Variant, options: dict[str, Any]) -> StableRank | AnnealedStableRank:
    check_options({**options, "variant": variant})
    return AnnealedStableRank(**options) if variant == "annealed" else StableRank(**options)
