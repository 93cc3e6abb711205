"""StableRankLR: the per-layer rates of RMSGD for any other optimizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from rankwise._text import list_globs
from rankwise.errors import ArgumentError
from rankwise.optim.epoch_end import make_probe, measure_layers, measure_start
from rankwise.optim.group_state import get_rate, is_moving
from rankwise.optim.rates import (
    FLOOR,
    POWER,
    RATE,
    ZETA,
    Rule,
    State,
    Variant,
    check_rule,
    next_states,
    resolve_beta,
)
from rankwise.probes.results import Probe


class StableRankLR(LRScheduler):
    """Gives every parameter group the rate at which its layer is learning.

    For a layer whose stable rank grew by Δs in an epoch: m ← max(βm + (ζ/η_ref)·Δs, floor), and
    its rate is m times its first one. Build the optimizer on `layer_groups(model)`, so that each
    layer has a group; a group with several weights follows their mean stable rank, and one
    without any the mean of the others.

    Call `step()` at the end of each epoch; or after each step of the optimizer, with
    `steps_per_epoch`. A call without a step of the optimizer since the last update changes
    nothing, so trainers may call it too often. The first rates are the optimizer's own, and
    other schedulers that multiply rates compose with this one.

    Args:
        optimizer: Any optimizer of torch's kind.
        beta: As in `RMSGD`.
        zeta: As in `RMSGD`.
        floor: The lowest rate, as a share of the first one.
        reference: η_ref, the first rate at which this is the paper's rule.
        epochs: As in `RMSGD`.
        variant: As in `RMSGD`.
        p: As in `RMSGD`.
        steps_per_epoch: The number of steps of the optimizer in an epoch, where `step()` is called
            after each of them; None where it is called once per epoch.
        include: As in `RMSGD`. Weights in groups without names have their layer's name.
        exclude: As in `RMSGD`.
        share: As in `RMSGD`.
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
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        share: bool = True,
        last_epoch: int = -1,
    ) -> None:
        self.beta = resolve_beta(beta, epochs, variant)
        self.zeta, self.floor, self.reference = zeta, floor, reference
        self.epochs, self.variant, self.p = epochs, variant, p
        self.steps_per_epoch = steps_per_epoch
        self.include, self.exclude, self.share = list_globs(include), list_globs(exclude), share
        check_rule(vars(self))
        if not 0.0 < reference < math.inf:
            raise ArgumentError(f"Expected reference > 0, got {reference!r}.")
        steps = steps_per_epoch
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise ArgumentError(f"Expected steps_per_epoch of 1 or more, or None, got {steps!r}.")
        self._states: list[State] = []
        self._steps = 0
        self._last_probe: Probe | None = None
        super().__init__(optimizer, last_epoch)
        self._register_hooks()

    @property
    def last_probe(self) -> Probe | None:
        """The metrics of the last update; None before the first, or after loading."""
        return self._last_probe

    def rates(self) -> dict[str, float]:
        """Return the present rate of each group, by its name."""
        groups = self.optimizer.param_groups
        return {g.get("name", f"group{i}"): get_rate(g) for i, g in enumerate(groups)}

    def get_lr(self) -> list[float | Tensor]:
        """Return the next rates of the groups: new ones after an epoch, else the present ones."""
        self._add_new_groups()
        groups, before = self.optimizer.param_groups, self._states
        if self._steps >= (self.steps_per_epoch or 1) and not self._is_initial:
            self._end_epoch()
        changes = [
            new.rate / old.rate if old.rate else 1.0
            for new, old in zip(self._states, before, strict=True)
        ]
        return [get_rate(group) * change for group, change in zip(groups, changes, strict=True)]

    def _get_closed_form_lr(self) -> list[float | Tensor]:
        """Return the first rates: SequentialLR asks for them where this scheduler's turn begins."""
        self._states, self._steps = [], 0
        self._add_new_groups()
        return list(self.base_lrs)

    def state_dict(self) -> dict[str, Any]:
        """Return all there is to know for resuming, as plain numbers, texts and lists."""
        left_out = ("optimizer", "_last_probe", "_states")
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        return copy.deepcopy({**state, "_layers": [s._asdict() for s in self._states]})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict()` returned, of an optimizer with the same groups."""
        state = copy.deepcopy(state_dict)
        layers, groups = state.pop("_layers"), self.optimizer.param_groups
        if len(layers) > len(groups):
            raise ArgumentError(
                f"Expected a state for {len(groups)} parameter groups, got one for {len(layers)}. "
                "Was the optimizer built on the same layer_groups()?"
            )
        super().load_state_dict(state)
        self._states = [State(**layer) for layer in layers]
        self._last_probe = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._register_hooks()  # a copy has an optimizer of its own

    def _register_hooks(self) -> None:
        """Follow the optimizer's steps, without its keeping this scheduler alive."""
        before, after = WeakMethod(self._before_step), WeakMethod(self._after_step)

        def call(method: WeakMethod[Any]) -> Callable[[Optimizer, Any, Any], None]:
            def hook(_: Optimizer, __: object, ___: object) -> None:
                if (alive := method()) is not None:
                    alive()

            return hook

        self.optimizer.register_step_pre_hook(call(before))
        self.optimizer.register_step_post_hook(call(after))

    @torch.no_grad()
    def _before_step(self) -> None:
        """Measure s(0) of layers that are about to take their first step.

        A rate of 0 is how a distributed checkpoint asks for empty buffers; that is no step.
        """
        self._add_new_groups()
        groups = self.optimizer.param_groups
        due = [
            index
            for index, (state, group) in enumerate(zip(self._states, groups, strict=True))
            if not state.started
            and any(param.requires_grad for param in group["params"])
            and group["lr"] != 0
        ]
        if due:
            options = {"include": self.include, "exclude": self.exclude}
            measured = measure_start(groups, self._states, due, p=self.p, **options)
            self._states = [measured.get(i, state) for i, state in enumerate(self._states)]

    def _after_step(self) -> None:
        moved = False
        pairs = zip(self._states, self.optimizer.param_groups, strict=True)
        for index, (state, group) in enumerate(pairs):
            if is_moving(group, state):
                moved = True
                self._states[index] = state._replace(stepped=True)
        self._steps += moved

    @torch.no_grad()
    def _end_epoch(self) -> None:
        rules = []
        for state in self._states:  # gains count relative to the first rate
            zeta, floor = self.zeta * (state.initial / self.reference), self.floor * state.initial
            rules.append(Rule(self.beta, zeta, floor, self.variant, self.epochs or 1))
        readings = measure_layers(
            self.optimizer.param_groups,
            self._states,
            include=self.include,
            exclude=self.exclude,
            p=self.p,
            share=self.share,
        )  # s(t), Eq. 2
        self._states = next_states(self._states, readings, rules)  # η(t), Eq. 4
        self._steps = 0
        self._last_probe = make_probe(readings, self.p)

    def _add_new_groups(self) -> None:
        """Add states for groups that the optimizer got since."""
        for index, group in enumerate(self.optimizer.param_groups):
            if index >= len(self.base_lrs):
                self.base_lrs.append(group.setdefault("initial_lr", get_rate(group)))
            if index >= len(self._states):
                initial = float(self.base_lrs[index])
                self._states.append(State(initial, initial))
