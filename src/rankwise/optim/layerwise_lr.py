"""LayerwiseLR: a multiplier for the rate of every layer, by a rule, for any optimizer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer

from rankwise._text import format_count, list_globs
from rankwise.errors import ArgumentError
from rankwise.optim.controls import (
    Control,
    ControlState,
    check_control,
    check_multiplier,
    control_multipliers,
)
from rankwise.optim.epoch_end import (
    Plan,
    list_readings,
    make_probe,
    measure_layers,
    measure_start,
)
from rankwise.optim.group_state import get_rate, has_gradient, separate_rates, set_rate
from rankwise.optim.misuse import Watch, warn_of_one_group
from rankwise.optim.multipliers import GroupState, contains, move_on, set_targets
from rankwise.optim.param_groups import is_weight, list_layers, name_params, select_weights
from rankwise.optim.quantities import Measurement, copy_weights
from rankwise.optim.readings import Reading
from rankwise.optim.rules.rule import LayerReading, Period, RateRule
from rankwise.probes.results import Probe

# What is saved in a form of its own, or not at all.
_NOT_PLAIN = (
    *("optimizer", "rule", "schedule", "_groups", "_rule_state", "_control_state"),
    *("_probe", "_readings", "_watch"),
)


class LayerwiseLR(LRScheduler):
    """Multiplies the rate of every layer by what a rule says of it.

    Build the optimizer on `layer_groups(model)`, so that each layer has a parameter group. Call
    `step()` at the end of each epoch; or after each step of the optimizer, which rules that update
    every few steps need, with `steps_per_epoch` for those that update once per epoch. A call
    without a step of the optimizer since the last update changes nothing.

    Other schedulers compose with this one, before or after it, if they multiply the present rates
    (LinearLR, ExponentialLR, CosineAnnealingLR, …). Pass one that computes rates from the first
    ones (LambdaLR, OneCycleLR, …) as `schedule`.

    Args:
        optimizer: Any optimizer of torch's kind.
        rule: `StableRank`, `AnnealedStableRank`, `TempBalance`, `LLR`, `RelativeUpdate`, or a
            `RateRule` of your own.
        every: When the rule sets rates: "epoch", or a number of steps of the optimizer; None for
            what the rule itself says.
        transition: In how many steps of the optimizer new multipliers are reached, linearly; None
            for what the rule says.
        steps_per_epoch: The number of steps of the optimizer in an epoch, where the rule updates
            once per epoch and `step()` is called after each step; None where it is called once per
            epoch.
        control: What to do instead of what the rule says, to find out what its choice of layers is
            worth: "mean" gives every layer that it sets the mean of its multipliers; "shuffled"
            gives each the multiplier of another one, by one permutation for the whole run; a table
            by layer is used as it is, with nothing measured.
        seed: Of the permutation of "shuffled".
        schedule: A scheduler of the same optimizer that `step()` steps first.
        include: Glob or globs: only weights whose name or kind ("linear", "conv2d", …) matches one
            are measured. Weights in groups without names have their layer's name.
        exclude: Glob or globs: weights whose name or kind matches one are not measured.
        share: Whether the processes of a distributed run divide the measuring among themselves;
            then all of them must call `step()`.
        last_epoch: As in torch's schedulers.

    Raises:
        ArgumentError: If an option is out of range, or `control` names an unknown layer.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> sizes = (20, 30, 30, 30, 10)
        >>> net = torch.nn.Sequential(*map(torch.nn.Linear, sizes[:-1], sizes[1:]))
        >>> optimizer = torch.optim.AdamW(rankwise.layer_groups(net), lr=1e-3)
        >>> scheduler = rankwise.LayerwiseLR(optimizer, rankwise.TempBalance())
        >>> net(torch.randn(8, 20)).square().mean().backward()
        >>> _ = optimizer.step()
        >>> scheduler.step()
        >>> sorted(scheduler.rates().values())
        [0.0005, 0.001, 0.001, 0.0015]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rule: RateRule[Any],
        *,
        every: Period | None = None,
        transition: int | None = None,
        steps_per_epoch: int | None = None,
        control: Control | None = None,
        seed: int = 0,
        schedule: LRScheduler | None = None,
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        share: bool = True,
        last_epoch: int = -1,
    ) -> None:
        self.rule, self.schedule, self.seed = rule, schedule, seed
        self.every = rule.every if every is None else every
        self.transition = rule.transition if transition is None else transition
        self.steps_per_epoch = steps_per_epoch
        self.control = dict(control) if isinstance(control, Mapping) else control
        self.include, self.exclude, self.share = list_globs(include), list_globs(exclude), share
        self._check(optimizer)
        self._groups: list[GroupState] = []
        self._rule_state = rule.start()
        self._control_state = ControlState({}, {})
        self._before: dict[str, list[Tensor]] = {}  # the weights at the last update
        self._steps = 0  # of the optimizer since the last update
        self._since = 0  # steps since the last new targets
        self._total = 0  # all steps
        self._updates = 0
        self._probe: Probe | None = None
        self._readings: tuple[LayerReading, ...] = ()
        self._watch = Watch()
        super().__init__(optimizer, last_epoch)
        self._register_hooks()

    @property
    def last_probe(self) -> Probe | None:
        """The metrics of the last update, if the rule needs stable ranks; None before the first."""
        return self._probe

    @property
    def last_readings(self) -> tuple[LayerReading, ...]:
        """What the rule was given at the last update; empty before the first, or after loading."""
        return self._readings

    def rates(self) -> dict[str, float]:
        """Return the present rate of each group, by its name."""
        groups = self.optimizer.param_groups
        return {g.get("name", f"group{i}"): get_rate(g) for i, g in enumerate(groups)}

    def __repr__(self) -> str:
        rates = self.rates().values()
        span = f"{min(rates):.4g} to {max(rates):.4g}"
        control = "a table" if isinstance(self.control, dict) else self.control
        how = f"{self.rule!r}{f' with control {control}' if control else ''}"
        return (
            f"<{type(self).__name__} of {type(self.optimizer).__name__} by {how}: "
            f"{format_count(len(rates), 'group')}, rates from {span}>"
        )

    def multipliers(self) -> dict[str, float]:
        """Return the present multiplier of each group, by its name."""
        return dict(zip(self.rates(), (state.multiplier for state in self._groups), strict=True))

    def step(self, epoch: int | None = None) -> None:
        """Set the rates: new ones at an update, a step further on the way to them otherwise."""
        if self.schedule is not None and not self._is_initial:
            groups = self.optimizer.param_groups
            present = [state.multiplier for state in self._groups]
            for group, multiplier in zip(groups, present, strict=False):
                set_rate(group, get_rate(group) / (multiplier or 1.0))
            self.schedule.step()
            for group, multiplier in zip(groups, present, strict=False):
                set_rate(group, get_rate(group) * multiplier)
        super().step(epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the next rates of the groups."""
        self._add_new_groups()
        groups, before = self.optimizer.param_groups, self._groups
        if self._is_initial:
            return self._apply_table()
        self._watch.see_call(self._steps, by_epoch=self._counts_calls)
        is_due = self._is_due()
        if is_due:
            self._watch_rates()
        self._move_on()
        if is_due:
            self._update()
            self._move_on()
        pairs = zip(groups, self._groups, before, strict=True)
        return [
            get_rate(group) * (new.multiplier / old.multiplier if old.multiplier else 1.0)
            for group, new, old in pairs
        ]

    def _get_closed_form_lr(self) -> list[float | Tensor]:
        """Return the first rates: SequentialLR asks for them where this scheduler's turn begins."""
        self._groups, self._rule_state = [], self.rule.start()
        self._control_state, self._before = ControlState({}, {}), {}
        self._steps = self._since = self._total = self._updates = 0
        for group, rate in zip(self.optimizer.param_groups, self.base_lrs, strict=False):
            set_rate(group, float(rate))
        self._add_new_groups()
        return [get_rate(group) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return all there is to know for resuming.

        That is numbers, texts, lists and dicts; for rules that measure updates also the weights at
        the last one.
        """
        state = {name: value for name, value in self.__dict__.items() if name not in _NOT_PLAIN}
        state["rule"] = {"name": type(self.rule).__name__, **_list_options(self.rule)}
        state["_rule_state"] = self._rule_state._asdict()
        state["_control_state"] = self._control_state._asdict()
        state["_layers"] = [group._asdict() for group in self._groups]
        if self.schedule is not None:
            state["schedule"] = self.schedule.state_dict()
        return copy.deepcopy(state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict()` returned, of an optimizer with the same groups.

        As in torch's schedulers, saved options replace those that were given.
        """
        state = copy.deepcopy(state_dict)
        layers, rule = state.pop("_layers"), state.pop("rule")
        self._check_state(len(layers), rule.pop("name"))
        if dataclasses.is_dataclass(self.rule):
            self.rule = dataclasses.replace(self.rule, **rule)
        self._rule_state = type(self.rule.start())(**state.pop("_rule_state"))
        self._control_state = ControlState(**state.pop("_control_state"))
        saved = state.pop("schedule", None)
        if self.schedule is not None and saved is not None:
            self.schedule.load_state_dict(saved)
        super().load_state_dict(state)
        self._groups = [GroupState(**layer) for layer in layers]
        self._watch.has_seen_steps |= self._total > 0
        self._probe, self._readings = None, ()

    def _check_state(self, count: int, rule: str) -> None:
        groups = self.optimizer.param_groups
        if count > len(groups):
            raise ArgumentError(
                f"Expected a state for {len(groups)} parameter groups, got one for {count}. "
                "Was the optimizer built on the same layer_groups()?"
            )
        if rule != type(self.rule).__name__:
            raise ArgumentError(
                f"Expected a state of the rule {type(self.rule).__name__}, got one of {rule}."
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._register_hooks()  # a copy has an optimizer of its own

    def _check(self, optimizer: Optimizer) -> None:
        """Raise for options out of range; warn of groups that hold several layers."""
        for name, least in (("steps_per_epoch", 1), ("transition", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ArgumentError(f"Expected {name} of {least} or more, or None, got {value!r}.")
        if self.every != "epoch" and (not isinstance(self.every, int) or self.every < 1):
            raise ArgumentError(f"Expected every='epoch' or 1 or more, got {self.every!r}.")
        if self.every != "epoch" and self.steps_per_epoch is not None:
            raise ArgumentError(
                f"Expected no steps_per_epoch for a rule that updates every {self.every} steps, "
                f"got {self.steps_per_epoch}."
            )
        if self.schedule is not None and self.schedule.optimizer is not optimizer:
            raise ArgumentError("Expected a schedule of the same optimizer, got another one's.")
        if isinstance(self.schedule, ReduceLROnPlateau):
            raise ArgumentError(
                "Expected a schedule whose step() takes no metric, got ReduceLROnPlateau. Leave it "
                "out here and call its step(metric) as usual: it multiplies the present rates."
            )
        if self.rule.is_global:
            if self.control is not None:
                raise ArgumentError(
                    f"Expected no control for {type(self.rule).__name__}, whose multiplier is one "
                    f"for all layers, got {self.control!r}."
                )
            return
        groups = optimizer.param_groups
        check_control(self.control, list_layers(groups))
        several = [
            group.get("name", f"group{i}")
            for i, group in enumerate(groups)
            if "layer" not in group and sum(is_weight(*named) for named in name_params(group)) > 1
        ]
        if several:
            warn_of_one_group(several)

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
        """Measure layers that are about to take their first step, for rules that compare."""
        self._add_new_groups()
        groups = self.optimizer.param_groups
        due = [
            index
            for index, (state, group) in enumerate(zip(self._groups, groups, strict=True))
            if not state.started
            and any(param.requires_grad for param in group["params"])
            and self._is_stepping(index)
        ]
        if not due or isinstance(self.control, dict):
            return
        found: dict[int, float | None] = dict.fromkeys(due)
        plan, tracked = self._plan, [state.tracked for state in self._groups]
        if self.rule.measures == "stable_rank":
            found = measure_start(groups, tracked, due, plan)
        elif self.rule.measures == "relative_update":
            self._remember_weights(only_new=True)
        for index, value in found.items():
            self._groups[index] = self._groups[index]._replace(value=value, started=True)

    def _after_step(self) -> None:
        self._watch.has_seen_steps = True
        found_inf = getattr(self.optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return  # a fused optimizer skips this step by itself
        moved = False
        for index, group in enumerate(self.optimizer.param_groups):
            if has_gradient(group) and self._is_stepping(index):
                moved = True
                self._groups[index] = self._groups[index]._replace(stepped=True)
        self._steps += moved
        self._since += moved
        self._total += moved

    def _is_stepping(self, index: int) -> bool:
        """Return whether a step of the optimizer is one of this group.

        A rate of 0 is how a distributed checkpoint asks for empty buffers, and no step; unless the
        multiplier is 0, or a schedule begins with 0.
        """
        if self.optimizer.param_groups[index]["lr"] != 0:
            return True
        state = self._groups[index]
        is_scheduled = index < len(self._last_lr) and bool(self._last_lr[index] == 0)
        return (state.started and state.multiplier == 0) or (
            is_scheduled and bool(self.base_lrs[index] != 0)
        )

    def _move_on(self) -> None:
        """Move the multipliers towards their targets, as far as the steps since allow."""
        part = min(1.0, self._since / self.transition) if self.transition else 1.0
        self._groups = move_on(self._groups, part)

    @property
    def _counts_calls(self) -> bool:
        """Whether each call of `step()` ends an epoch."""
        return self.every == "epoch" and self.steps_per_epoch is None

    def _is_due(self) -> bool:
        last = self.rule.last_step
        if last is not None and self._total > last:
            return False
        if self.rule.updates_first and not self._updates:
            return self._total > 0
        every = (self.steps_per_epoch or 1) if self.every == "epoch" else self.every
        return self._steps >= every

    @torch.no_grad()
    def _update(self) -> None:
        """Measure the layers, ask the rule, and set the multipliers to reach."""
        if isinstance(self.control, dict):
            self._steps, self._updates = 0, self._updates + 1
            return
        readings = measure_layers(
            self.optimizer.param_groups, [state.tracked for state in self._groups], self._plan
        )
        layers = tuple(reading.to_layer(self._find_schedule(reading)) for reading in readings)
        self._rule_state, multipliers = self.rule.update(self._rule_state, layers)
        for name, multiplier in multipliers.items():
            check_multiplier(name, multiplier)
        self._control_state, multipliers = control_multipliers(
            self.control, self._control_state, multipliers, self.seed
        )
        self._groups = set_targets(
            self._groups,
            readings,
            multipliers,
            others_follow=self.rule.others_follow,
            is_set=self._is_set,
        )
        if self.rule.measures == "relative_update":
            self._remember_weights()
        if self._updates or not self.rule.updates_first:
            self._steps = 0  # after an update at the first step the period goes on
        self._since = 0
        self._updates += 1
        self._readings = layers
        needs_ranks = self.rule.measures == "stable_rank"
        self._probe = make_probe(readings, self.rule.p) if needs_ranks else None

    def _is_set(self, index: int) -> bool:
        """Return whether a group takes its layer's multiplier."""
        group = self.optimizer.param_groups[index]
        return self.rule.sets_vectors or bool(select_weights(group, None, None))

    def _find_schedule(self, reading: Reading) -> float:
        """Return what others have multiplied a layer's first rate by."""
        lead = reading.groups[0]
        own = float(self.base_lrs[lead]) * self._groups[lead].multiplier
        return get_rate(self.optimizer.param_groups[lead]) / own if own else 1.0

    @property
    def _plan(self) -> Plan:
        """What to measure, and of which of the layers that have a weight."""
        measurement = Measurement(self.rule.measures, self.rule.p, self._before)
        plan = Plan(measurement, self.include, self.exclude, self.share)
        groups, tracked = self.optimizer.param_groups, [state.tracked for state in self._groups]
        readings, _ = list_readings(groups, tracked, plan)
        layers = [reading.to_layer() for reading in readings if reading.shape]
        return dataclasses.replace(plan, only=frozenset(self.rule.select(layers)))

    def _remember_weights(self, *, only_new: bool = False) -> None:
        """Keep a copy of the weights that are measured."""
        groups, tracked = self.optimizer.param_groups, [state.tracked for state in self._groups]
        _, tensors = list_readings(groups, tracked, self._plan)
        copy_weights(tensors, self._before, only_new=only_new)

    def _add_new_groups(self) -> None:
        """Add states for groups that the optimizer got since; a table's multipliers act at once."""
        separate_rates(self.optimizer)
        for index, group in enumerate(self.optimizer.param_groups):
            if index >= len(self.base_lrs):
                self.base_lrs.append(group.setdefault("initial_lr", get_rate(group)))
            if index >= len(self._groups):
                fixed = self._read_table(index)
                self._groups.append(GroupState(fixed, fixed, fixed))
                if not self._is_initial:
                    set_rate(group, fixed * get_rate(group))

    def _apply_table(self) -> list[float | Tensor]:
        """Return the rates to begin with: with a table's multipliers, unless they have these."""
        groups = self.optimizer.param_groups
        present = [get_rate(group) for group in groups]
        if contains(*self._compare_rates()):
            return [*present]
        return [rate * state.multiplier for rate, state in zip(present, self._groups, strict=True)]

    def _compare_rates(self) -> tuple[list[float], list[float]]:
        """Return the present rates as shares of the first ones, and the multipliers."""
        triples = zip(self.optimizer.param_groups, self.base_lrs, self._groups, strict=True)
        pairs = [(get_rate(g) / float(rate), s.multiplier) for g, rate, s in triples if rate]
        return [now for now, _ in pairs], [own for _, own in pairs]

    def _read_table(self, index: int) -> float:
        """Return the multiplier of a group where the control is a table; else 1."""
        if not isinstance(self.control, dict) or not self._is_set(index):
            return 1.0
        group = self.optimizer.param_groups[index]
        return self.control.get(group.get("layer", f"group{index}"), 1.0)

    def _watch_rates(self) -> None:
        """Warn once of what else sets the rates: another scheduler, or RMSGD itself."""
        groups = self.optimizer.param_groups
        has_rule = any("base_rate" in group and group["epoch"] > 0 for group in groups)
        self._watch.see_rates(*self._compare_rates(), has_rule=has_rule)


def _list_options(rule: RateRule[Any]) -> dict[str, Any]:
    """Return the options of a rule that is a dataclass."""
    if not dataclasses.is_dataclass(rule):
        return {}
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
