"""RMSGD: SGD with momentum whose rate of each layer follows the layer's gain in stable rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, _use_grad_for_differentiable

from rankwise._text import list_globs
from rankwise.errors import ArgumentError
from rankwise.optim.distributed import any_process
from rankwise.optim.epoch_end import Plan, make_probe, measure_layers, measure_start
from rankwise.optim.group_state import (
    State,
    add_state,
    external_factor,
    get_rate,
    has_gradient,
    is_moving,
    read_state,
    set_rate,
    warn_if_overwritten,
    write_state,
)
from rankwise.optim.misuse import FirstEpoch, warn_of_default_beta
from rankwise.optim.param_groups import Group, split_group
from rankwise.optim.quantities import Measurement
from rankwise.optim.readings import Reading
from rankwise.optim.rules.annealed_stable_rank import AnnealedStableRank
from rankwise.optim.rules.stable_rank import (
    POWER,
    RATE,
    ZETA,
    GainRule,
    StableRank,
    Variant,
    check_options,
    next_rates,
    resolve_beta,
)
from rankwise.optim.sgd_state import convert_sgd_state
from rankwise.optim.sgd_step import step_groups
from rankwise.probes.results import Probe

_MAX_SHOWN = 10  # rates in the text of the optimizer


class RMSGD(Optimizer):
    """SGD with momentum that trains every layer at the rate at which it is learning.

    Stage I, every step, with each layer's own rate η: v ← αv − ηg, w ← w + v. Stage II, at the end
    of every epoch: η ← max(βη + ζ·Δs, floor), where Δs is the gain in the stable rank of the
    layer's weight since the epoch before. While rates are constant this is torch.optim.SGD.

    Each layer is a parameter group with a name: every tensor with two or more dimensions, with the
    smaller ones that follow it. `group["lr"]` is the layer's rate, so schedulers that multiply
    rates, checkpoints and monitors work as with any optimizer. Layers without a weight to measure
    follow the mean of the others.

    Args:
        params: Tensors, `(name, tensor)` pairs as from `model.named_parameters()`, or groups of
            either; names make reports readable.
        lr: η(0), the initial rate of every layer.
        momentum: α.
        beta: β, the share of the rate that an epoch without gain leaves. None for
            `beta_for(epochs)`; without `epochs` the paper's 0.98, which is for about 250 epochs,
            with a warning at the first `epoch_step()`; for "annealed", where it is the share of
            the gains that an epoch leaves, 0.98.
        zeta: ζ, the weight of a gain in stable rank.
        floor: The lowest rate; None for a hundredth of `lr`.
        epochs: The number of epochs to train: sets β, or the length of "annealed".
        dampening: As in torch.optim.SGD.
        weight_decay: As in torch.optim.SGD.
        nesterov: As in torch.optim.SGD.
        maximize: As in torch.optim.SGD.
        foreach: As in torch.optim.SGD. If this and `fused` are None, the fastest safe
            implementation is used.
        fused: As in torch.optim.SGD.
        differentiable: As in torch.optim.SGD.
        variant: "paper"; or "annealed" for η(t) = a(t)·(η(0) + m(t)), m(t) = βm(t−1) + ζ·Δs, with a
            cosine a(t) from 1 to 0 over `epochs`, which is better for few epochs.
        p: The power in the stable rank.
        include: Glob or globs: only weights whose name or kind ("linear", "conv2d", …) matches one
            are measured.
        exclude: Glob or globs: weights whose name or kind matches one are not measured.
        share: Whether the processes of a distributed run divide the measuring among themselves;
            then all of them must call `epoch_step()`.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> import torch, rankwise
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
        >>> optimizer = rankwise.RMSGD(net.named_parameters(), lr=0.03, epochs=250)
        >>> for epoch in range(2):
        ...     for batch in range(3):
        ...         optimizer.zero_grad()
        ...         net(torch.randn(8, 20)).square().mean().backward()
        ...         _ = optimizer.step()
        ...     optimizer.epoch_step()
        >>> {name: round(rate, 6) for name, rate in optimizer.rates().items()}
        {'0': 0.028812, '1': 0.028812}
    """

    # On the class: torch.compile loses what is set on an optimizer before Optimizer.__init__.
    _idle: Sequence[Group] = ()  # groups that took no step since the last epoch ended
    _last_probe: Probe | None = None
    _has_default_beta = False  # neither `beta` nor `epochs` was given
    _first_epoch: FirstEpoch | None = None  # none in a copy: the original warns

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = RATE,
        *,
        momentum: float = 0.9,
        beta: float | None = None,
        zeta: float = ZETA,
        floor: float | None = None,
        epochs: int | None = None,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
        variant: Variant = "paper",
        p: float = POWER,
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        share: bool = True,
    ) -> None:
        defaults = {
            # What every step reads comes first, so that it lies together in memory.
            "lr": lr if isinstance(lr, Tensor) else float(lr),
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "differentiable": differentiable,
            "foreach": foreach,
            "fused": fused,
            "beta": resolve_beta(beta, epochs, variant),
            "zeta": zeta,
            "floor": floor,
            "epochs": epochs,
            "variant": variant,
            "p": p,
            "include": list_globs(include),
            "exclude": list_globs(exclude),
            "share": share,
        }
        _check(defaults)
        super().__init__(params, defaults)
        self._has_default_beta = beta is None and epochs is None and variant == "paper"
        self._first_epoch = FirstEpoch()
        finalize(self, self._first_epoch.see_end_of_training)
        if fused and differentiable:
            raise RuntimeError("`fused` does not support `differentiable`")
        if fused and foreach:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")

    @_disable_dynamo  # as the one it overrides
    def add_param_group(self, param_group: Group) -> None:
        """Add parameters, one group for each layer among them.

        A group with an entry "layer" is one layer, or a part of it, and stays whole.
        """
        super().add_param_group(param_group)  # checks for duplicates, while the group is whole
        whole = self.param_groups.pop()
        _check(whole)
        self._check_common(whole)
        if any(is_lazy(param) for param in whole["params"]):
            raise ArgumentError(
                "Expected parameters with shapes, got lazy ones: run the model once."
            )
        for group in split_group(whole, self.param_groups):
            if isinstance(group["lr"], Tensor) and not group["lr"].requires_grad:
                group["lr"] = 1.0 * group["lr"]  # each layer its own, and no integer
            add_state(group)
            self.param_groups.append(group)
            self._idle = [*self._idle, group]

    def _check_common(self, group: Group) -> None:
        """Raise for options of a group that only the whole optimizer can have."""
        for name in ("include", "exclude"):
            group[name] = list_globs(group[name])
        for name in ("variant", "p", "include", "exclude", "share"):
            if group[name] != self.defaults[name]:
                raise ArgumentError(
                    f"Expected {name} for the optimizer as a whole, got it for a group: "
                    f"{group[name]!r}."
                )

    @_disable_dynamo
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for index, group in enumerate(self.param_groups):
            for name, default in self.defaults.items():
                group.setdefault(name, default)
            group.setdefault("layer", f"layer{index}")
            group.setdefault("name", group["layer"])
            add_state(group)
        self._idle = [group for group in self.param_groups if not group["stepped"]]
        self._last_probe = None
        if not self._is_first_epoch:
            self._end_first_epoch()

    @_disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; of torch.optim.SGD too, if that has the groups of `layer_groups(model)`.

        Momentum continues where it was: SGD's buffers are multiplied by the rates of their groups.

        Raises:
            ArgumentError: If it is SGD's, with other groups.
        """
        super().load_state_dict(convert_sgd_state(state_dict, self.param_groups))

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler leaves unscaling to `step`; a property, so that pickling keeps it."""
        return any(group["fused"] for group in self.param_groups)

    @property
    def last_probe(self) -> Probe | None:
        """The metrics of the last `epoch_step()`; None before the first, or after loading."""
        return self._last_probe

    def rates(self) -> dict[str, float]:
        """Return the present rate of each layer, by the name of its group."""
        return {group["name"]: get_rate(group) for group in self.param_groups}

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
        """Take one step; return what the closure, which computes the loss again, returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return loss
        if torch.compiler.is_compiling():
            self._record_step_untraced()
        else:
            self._record_step()
        step_groups(self.param_groups, self.state, getattr(self, "grad_scale", None))
        return loss

    @torch.no_grad()
    def epoch_step(self) -> None:
        """End an epoch: measure the stable rank of every layer and set the new rates.

        Does nothing if no step was taken since the last call. A layer that can't be measured keeps
        its rate, and a warning names it.

        Raises:
            ArgumentError: If a rate is a tensor that requires a gradient.
            DistributedError: If another process of a distributed run does not answer.
        """
        groups = self.param_groups
        # Of a sharded optimizer, a process may hold only layers that took no step, or none.
        if not any_process(any(g["stepped"] for g in groups), share=groups[0]["share"]):
            return
        if any(isinstance(g["lr"], Tensor) and g["lr"].requires_grad for g in groups):
            raise ArgumentError("Expected rates that epoch_step() may set, got one with gradient.")
        if self._has_default_beta and self._is_first_epoch:
            warn_of_default_beta(self.defaults["beta"])
        states = [read_state(group) for group in groups]
        readings = measure_layers(groups, [s.tracked for s in states], self._plan)  # s(t), Eq. 2
        states = next_states(states, readings, [_rule(group) for group in groups])  # η(t), Eq. 4
        warn_if_overwritten(groups)
        for group, state in zip(groups, states, strict=True):
            set_rate(group, state.rate * external_factor(group))
            write_state(group, state)
        self._idle = list(groups)
        self._end_first_epoch()
        self._last_probe = make_probe(readings, groups[0]["p"])

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.defaults.items() if v is not None)
        rates = self.rates()
        lines = [f"\n    {name}: {rate:.6g}" for name, rate in rates.items()]
        if len(lines) > _MAX_SHOWN:
            least, most = min(rates.values()), max(rates.values())
            hidden = len(lines) - _MAX_SHOWN
            lines[_MAX_SHOWN:] = [f"\n    … and {hidden} more; all from {least:.6g} to {most:.6g}"]
        return f"{type(self).__name__}({options}) with the rates{''.join(lines)}"

    @property
    def _plan(self) -> Plan:
        p, include, exclude, share = (
            self.param_groups[0][name] for name in ("p", "include", "exclude", "share")
        )
        return Plan(Measurement("stable_rank", p), include, exclude, share)

    def _record_step(self) -> None:
        """Record which groups take a step now, and measure s(0) of those that never did before.

        That is later than construction, since weights may be loaded in between.
        """
        if self._first_epoch is not None:
            self._first_epoch.see_step()
        if not self._idle:
            return
        moving = [g for g in self._idle if has_gradient(g) and is_moving(g, read_state(g))]
        for group in self._idle:  # wrappers may have restored what was there before the epoch ended
            group["stepped"] = False
        for group in moving:
            group["stepped"] = True
        if moving:
            self._idle = [group for group in self._idle if not group["stepped"]]
            self._measure_start()

    @property
    def _is_first_epoch(self) -> bool:
        return all(group["epoch"] == 0 for group in self.param_groups)

    def _end_first_epoch(self) -> None:
        if self._first_epoch is not None:
            self._first_epoch.is_over = True
            self._first_epoch = None

    _record_step_untraced = _disable_dynamo(_record_step)

    @torch.no_grad()
    def _measure_start(self) -> None:
        groups = self.param_groups
        states = [read_state(group) for group in groups]
        # another process may have measured a layer that this one had no part of so far
        due = [
            index
            for index, state in enumerate(states)
            if state.stepped and not state.started and state.stable_rank is None
        ]
        if due:
            tracked = [state.tracked for state in states]
            for index, value in measure_start(groups, tracked, due, self._plan).items():
                new = states[index]._replace(stable_rank=value, started=True)
                write_state(groups[index], new)


def next_states(
    states: Sequence[State], readings: Sequence[Reading], rules: Sequence[GainRule]
) -> list[State]:
    """Return the state of every parameter group after an epoch.

    All groups of a layer have its stable rank, and rates in proportion to their first ones.
    """
    leads = [reading.groups[0] for reading in readings]
    rates = next_rates(
        [states[lead].layer_rate for lead in leads],
        [reading.to_layer() for reading in readings],
        [rules[lead] for lead in leads],
    )
    new = list(states)
    for rate, reading in zip(rates, readings, strict=True):
        stable_rank = reading.previous if reading.value is None else reading.value
        for index in reading.groups:
            own = states[index]
            share = own.initial / rate.initial if rate.initial else 0.0
            new[index] = own._replace(
                rate=rate.rate * share, stable_rank=stable_rank, epoch=rate.epoch, stepped=False
            )
    return new


def _rule(group: Group) -> GainRule:
    """Return the rule of a group, for rates instead of multipliers: hence a reference of 1."""
    options = {name: group[name] for name in ("beta", "zeta", "floor")}
    if group["variant"] == "annealed":
        return AnnealedStableRank(group["epochs"] or 1, **options, reference=1.0)
    return StableRank(**options, reference=1.0)


def _check(options: Group) -> None:
    """Raise for options out of range, with the messages of torch.optim.SGD where it has them."""
    lr = options["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if lr < 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    for name in ("momentum", "weight_decay"):
        if options[name] < 0.0:
            raise ValueError(f"Invalid {name} value: {options[name]}")
    if options["nesterov"] and (options["momentum"] <= 0 or options["dampening"] != 0):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")
    check_options(options)
