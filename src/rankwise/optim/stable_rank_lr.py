"""StableRankLR: the per-layer schedule of RMSGD for any other optimizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal
from weakref import WeakMethod

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from rankwise.api import globs
from rankwise.errors import ArgumentError
from rankwise.optim.epoch_end import Setting, ended_epoch, started
from rankwise.optim.group_state import is_moving, rate_of
from rankwise.optim.rates import Gain, Rule, State, check_rule, chosen_beta
from rankwise.probes.probe_result import Probe

__all__ = ["StableRankLR"]


class StableRankLR(LRScheduler):
    """Gives every parameter group the rate at which its layer is learning.

    For a layer whose stable rank grew by Δs in an epoch: m ← max(βm + (ζ/η_ref)·Δs, floor), and
    its rate is m times its first one. Build the optimizer on `layer_groups(model)`, so that each
    layer has a group; a group with several weights follows their mean stable rank, and one
    without any the mean pace of the others.

    Call `step()` at the end of each epoch; or after each step of the optimizer, with
    `steps_per_epoch`. A call without a step of the optimizer since the last update changes
    nothing, so that trainers may call it too often. The first rates are the optimizer's own, and
    other schedulers that multiply rates compose with this one.

    Args:
        optimizer: Any optimizer of torch's kind.
        beta: β, how much of the rate an epoch without gain leaves; None for `beta_for(epochs)`, or
            0.98 where `epochs` are not given, and for "annealed".
        zeta: ζ, what a gain in stable rank is worth.
        floor: The least rate, as a share of the first one.
        reference: η_ref, the first rate at which this is the paper's rule.
        epochs: How many epochs will be trained: β is chosen by it, or "annealed" ends with it.
        variant: "paper", or "annealed" as in `RMSGD`.
        gain: "absolute" or "relative", as in `RMSGD`.
        p: The power in the stable rank.
        steps_per_epoch: How many steps of the optimizer make an epoch, where `step()` is called
            after each of them; None where it is called once an epoch.
        include: Glob or globs: only weights whose name or kind ("linear", "conv2d", …) matches one
            are probed. Groups without names have their layer's.
        exclude: Glob or globs: weights whose name or kind matches one are not probed.
        share: Whether the processes of a distributed run divide the probe among themselves.
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
        zeta: float = 1.0,
        floor: float = 0.01,
        reference: float = 0.03,
        epochs: int | None = None,
        variant: Literal["paper", "annealed"] = "paper",
        gain: Gain = "absolute",
        p: float = 2.0,
        steps_per_epoch: int | None = None,
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        share: bool = True,
        last_epoch: int = -1,
    ) -> None:
        self.beta = chosen_beta(beta, epochs, variant)
        self.zeta, self.floor, self.reference = zeta, floor, reference
        self.epochs, self.variant, self.gain, self.p = epochs, variant, gain, p
        self.steps_per_epoch = steps_per_epoch
        self.include, self.exclude, self.share = globs(include), globs(exclude), share
        self._check()
        self._layers: list[dict[str, Any]] = []
        self._steps = 0
        self._last_probe: Probe | None = None
        super().__init__(optimizer, last_epoch)
        self._watch()

    def _check(self) -> None:
        if self.variant not in ("paper", "annealed"):
            raise ArgumentError(f"Expected variant 'paper' or 'annealed', got {self.variant!r}.")
        check_rule(vars(self))
        if not 0.0 < self.reference < math.inf:
            raise ArgumentError(f"Expected reference > 0, got {self.reference!r}.")
        steps = self.steps_per_epoch
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise ArgumentError(f"Expected steps_per_epoch of 1 or more, or None, got {steps!r}.")

    @property
    def last_probe(self) -> Probe | None:
        """What the last update found; None before the first, or after loading."""
        return self._last_probe

    def rates(self) -> dict[str, float]:
        """Each group's present rate, by its name."""
        groups = self.optimizer.param_groups
        return {g.get("name", f"group{i}"): rate_of(g) for i, g in enumerate(groups)}

    def get_lr(self) -> list[float | Tensor]:
        """The groups' next rates: after an epoch of training new ones, else as they are."""
        groups = self.optimizer.param_groups
        self._catch_up()
        due = self._steps >= (self.steps_per_epoch or 1) and not self._is_initial
        paces = self._update() if due else [1.0] * len(groups)
        return [rate_of(group) * pace for group, pace in zip(groups, paces, strict=True)]

    def _get_closed_form_lr(self) -> list[float | Tensor]:
        """What SequentialLR asks for where this scheduler's turn begins: a fresh start."""
        self._layers, self._steps = [], 0
        self._catch_up()
        return list(self.base_lrs)

    def state_dict(self) -> dict[str, Any]:
        """All there is to know for resuming, as plain numbers, texts and lists."""
        left_out = ("optimizer", "_last_probe")
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        return copy.deepcopy(state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state.

        Args:
            state_dict: What `state_dict()` returned.

        Raises:
            ArgumentError: If it is of an optimizer with more parameter groups.
        """
        saved, groups = len(state_dict["_layers"]), len(self.optimizer.param_groups)
        if saved > groups:
            raise ArgumentError(
                f"Expected a state for {groups} parameter groups, got one for {saved}. "
                "Was the optimizer built on the same layer_groups()?"
            )
        super().load_state_dict(copy.deepcopy(state_dict))
        self._last_probe = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._watch()  # a copy has an optimizer of its own

    def _watch(self) -> None:
        """Has the optimizer tell of its steps, without keeping this scheduler alive."""
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
        """Measures s(0) of layers that are about to take their first step.

        A rate of 0 is how a distributed checkpoint asks for empty buffers; that is no step.
        """
        self._catch_up()
        groups = self.optimizer.param_groups
        due = [
            index
            for index, (layer, group) in enumerate(zip(self._layers, groups, strict=True))
            if not layer["started"]
            and any(param.requires_grad for param in group["params"])
            and group["lr"] != 0
        ]
        if not due:
            return
        for index, state in enumerate(started(groups, self._states, due, self._setting)):
            self._layers[index].update(state._asdict())
        for index in due:
            self._layers[index]["started"] = True

    def _after_step(self) -> None:
        moved = False
        for layer, group in zip(self._layers, self.optimizer.param_groups, strict=True):
            if is_moving(group, layer):
                layer["stepped"] = moved = True
        self._steps += moved

    @torch.no_grad()
    def _update(self) -> list[float]:
        """Ends an epoch; returns what each group's rate is to be multiplied by."""
        states = self._states
        scales = [state.initial / self.reference for state in states]
        rules = [
            Rule(
                self.beta,
                self.zeta * scale,
                self.floor * state.initial,
                self.variant,
                self.gain,
                self.epochs or 1,
            )
            for scale, state in zip(scales, states, strict=True)
        ]
        stepped = [layer["stepped"] for layer in self._layers]
        groups = self.optimizer.param_groups
        new, self._last_probe = ended_epoch(groups, states, rules, stepped, self._setting)
        for layer, state in zip(self._layers, new, strict=True):
            layer.update(state._asdict(), stepped=False)
        self._steps = 0
        pairs = zip(new, states, strict=True)
        return [after.rate / before.rate if before.rate else 1.0 for after, before in pairs]

    def _catch_up(self) -> None:
        """Takes in groups that the optimizer has got since."""
        for index, group in enumerate(self.optimizer.param_groups):
            if index >= len(self.base_lrs):
                self.base_lrs.append(group.setdefault("initial_lr", rate_of(group)))
            if index >= len(self._layers):
                initial = float(self.base_lrs[index])
                fresh = State(initial, initial)._asdict()
                self._layers.append({**fresh, "started": False, "stepped": False})

    @property
    def _states(self) -> list[State]:
        return [State(*(layer[name] for name in State._fields)) for layer in self._layers]

    @property
    def _setting(self) -> Setting:
        return Setting(self.include, self.exclude, self.share, p=self.p)
