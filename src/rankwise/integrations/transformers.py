"""Hugging Face's Trainer: RMSGD, any rule for its own optimizers, a callback for their layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, LinearLR
from torch.optim.optimizer import Optimizer

from rankwise.checks.monitor import LayerMonitor
from rankwise.errors import ArgumentError, MissingExtraError
from rankwise.integrations.monitoring import find_source, find_update, layer_scalars
from rankwise.optim.layerwise_lr import LayerwiseLR
from rankwise.optim.param_groups import layer_groups
from rankwise.optim.rmsgd import RMSGD
from rankwise.optim.rules.rule import RateRule

try:
    import accelerate  # noqa: F401 - without it transformers has a Trainer that can't be made
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
        get_scheduler,
    )
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise MissingExtraError(
        error.name or "transformers", "transformers", "Training with Hugging Face's Trainer"
    ) from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["EpochStep", "LayerCheck", "layerwise", "no_decay", "rmsgd"]


def rmsgd(
    model: nn.Module,
    lr: float = 0.03,
    *,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
    **options: Any,
) -> tuple[RMSGD, Any]:  # a scheduler, but the Trainer's annotation admits a LambdaLR only
    """Return the pair for `Trainer(optimizers=…)`: an RMSGD and a scheduler that keeps its rates.

    Without a scheduler the Trainer creates its own, which computes every rate from the first one
    at each step and so overwrites the layers' rates. The `TrainingArguments` for the rate, its
    schedule and weight decay have no effect on this pair.

    Args:
        model: The model; weight decay leaves out what the Trainer itself would leave out.
        lr: The initial rate of every layer.
        weight_decay: As in torch.optim.SGD.
        warmup_steps: The number of steps in which the rates grow from a hundredth to full size.
        options: Other options of RMSGD.

    Raises:
        ArgumentError: If `warmup_steps` is negative.

    Example:
        >>> import torch
        >>> from rankwise.integrations.transformers import rmsgd
        >>> optimizer, scheduler = rmsgd(torch.nn.Linear(20, 10), lr=0.1, weight_decay=0.01)
        >>> [(group["name"], group["weight_decay"]) for group in optimizer.param_groups]
        [('weight', 0.01), ('bias', 0.0)]
    """
    if warmup_steps < 0:
        raise ArgumentError(f"Expected warmup_steps of 0 or more, got {warmup_steps!r}.")
    groups = layer_groups(model, no_decay=no_decay(model), weight_decay=weight_decay)
    optimizer = RMSGD(groups, lr=lr, **options)
    if warmup_steps:
        return optimizer, LinearLR(optimizer, start_factor=0.01, total_iters=warmup_steps)
    return optimizer, ConstantLR(optimizer, factor=1.0, total_iters=0)


def layerwise(
    model: nn.Module,
    args: TrainingArguments,
    rule: RateRule[Any],
    *,
    steps: int,
    **options: Any,
) -> tuple[Optimizer, Any]:  # a scheduler, but the Trainer's annotation admits a LambdaLR only
    """Return the pair for `Trainer(optimizers=…)`: what the arguments ask for, with a rule.

    The optimizer, its options and weight decay, the schedule and the warm-up are those of the
    `TrainingArguments`; every layer has a parameter group, and its rate is that of the schedule
    times the rule's multiplier.

    Args:
        model: The model.
        args: The arguments of the training.
        rule: `StableRank`, `TempBalance`, `LLR`, …, as for `LayerwiseLR`.
        steps: The number of steps of the optimizer in the whole training. With `max_steps` in the
            arguments that is the number; otherwise, where d examples train for e epochs in batches
            of b (on all devices, with accumulation), it is e·⌈d/b⌉.
        options: Other options of `LayerwiseLR`.

    Raises:
        ArgumentError: If `steps` is below 1, or an option is out of range.

    Example:
        >>> import tempfile, torch, rankwise
        >>> from transformers import TrainingArguments
        >>> from rankwise.integrations.transformers import layerwise
        >>> args = TrainingArguments(tempfile.mkdtemp(), learning_rate=1e-3, warmup_steps=10)
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
        >>> optimizer, scheduler = layerwise(net, args, rankwise.LLR(100), steps=100)
        >>> (type(optimizer).__name__, type(scheduler.schedule).__name__, scheduler.every)
        ('AdamW', 'LambdaLR', 40)
    """
    if steps < 1:
        raise ArgumentError(f"Expected steps of 1 or more, got {steps!r}.")
    kind, arguments = Trainer.get_optimizer_cls_and_kwargs(args, cast("PreTrainedModel", model))
    groups = layer_groups(model, no_decay=no_decay(model), weight_decay=args.weight_decay)
    optimizer: Optimizer = kind(groups, **arguments)
    schedule = get_scheduler(
        args.lr_scheduler_type,
        optimizer=optimizer,
        num_warmup_steps=args.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=cast("dict[str, Any] | None", args.lr_scheduler_kwargs),
    )
    if options.get("every", rule.every) == "epoch":  # the Trainer steps schedulers after each step
        per_epoch = max(1, math.ceil(steps / args.num_train_epochs))
        options.setdefault("steps_per_epoch", per_epoch)
    return optimizer, LayerwiseLR(optimizer, rule, schedule=schedule, **options)


def no_decay(model: nn.Module) -> Callable[[str, Tensor], bool]:
    """Return a test for parameters without weight decay in the Trainer, for `layer_groups`.

    Example:
        >>> import torch, rankwise
        >>> from rankwise.integrations.transformers import no_decay
        >>> net = torch.nn.Linear(20, 10)
        >>> groups = rankwise.layer_groups(net, no_decay=no_decay(net), weight_decay=0.01)
        >>> optimizer = torch.optim.AdamW(groups, lr=1e-3)
        >>> scheduler = rankwise.StableRankLR(optimizer, steps_per_epoch=100)
    """
    # The method uses nothing of its Trainer, which does not exist yet.
    decayed = set(Trainer.get_decay_parameter_names(cast("Trainer", None), model))
    return lambda name, _: name not in decayed


class EpochStep(TrainerCallback):
    """Calls RMSGD's `epoch_step()` at the end of each epoch, before any checkpoint of that epoch.

    Args:
        log: Takes "rate/<layer>", "stable_rank/<layer>", "quality/<layer>" and
            "stable_rank_by_width", the network's S, after each epoch: the Trainer's `log`, as in
            `trainer.add_callback(EpochStep(log=trainer.log))`. A LayerwiseLR is logged too. None
            of them is for `metric_for_best_model`: S keeps rising while a network overfits.

    Example:
        >>> from rankwise.integrations.transformers import EpochStep
        >>> callbacks = [EpochStep()]  # for Trainer(…, callbacks=callbacks)
    """

    def __init__(self, log: Callable[[dict[str, float]], None] | None = None) -> None:
        self._log = log
        self._logged: object = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the epoch after its last step: a checkpoint may be saved right after it."""
        if _is_epoch_end(state):
            self._end_epoch(control, **kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End an epoch that has fewer steps than expected.

        Not where training stops in its middle: resumed, the Trainer continues the same epoch.
        """
        if _is_epoch_end(state) or not control.should_training_stop:
            self._end_epoch(control, **kwargs)

    def _end_epoch(
        self, control: TrainerControl, *, optimizer: object, lr_scheduler: object, **_: object
    ) -> None:
        source = find_source(optimizer) or find_source(lr_scheduler)
        if isinstance(source, RMSGD):
            source.epoch_step()
        if self._log is None or source is None or find_update(source) is self._logged:
            return
        self._logged = find_update(source)
        # Logging resets the flag for the entry that the Trainer itself was about to log.
        should_log = control.should_log
        self._log(layer_scalars(source, ("rate", "stable_rank", "quality")))
        control.should_log = should_log


class LayerCheck(TrainerCallback, ExportableState):
    """Warns once, by name, when a layer goes wrong; with any optimizer.

    It looks at the layers when training starts and after each epoch, as `rankwise.LayerMonitor`
    does. All processes measure; the first one warns. Checkpoints hold what it knows; the Trainer
    gives it back with `restore_callback_states_from_checkpoint=True`.

    Args:
        every: After how many steps to look; None for once an epoch.
        budget: The share of time that measuring may take, as in `rankwise.LayerMonitor`.

    Attributes:
        monitor: The monitor, with its `findings`.

    Raises:
        ArgumentError: If `every` or `budget` is out of range.

    Example:
        >>> from rankwise.integrations.transformers import LayerCheck
        >>> callbacks = [LayerCheck(every=100, budget=0.02)]  # for Trainer(…, callbacks=callbacks)
    """

    def __init__(self, every: int | None = None, *, budget: float | None = None) -> None:
        self.monitor = LayerMonitor(every=1 if every is None else every, budget=budget)
        self._every = every
        self._budget = budget

    @property
    def known(self) -> dict[str, Any]:
        """What the monitor knows; the Trainer saves it and sets it again."""
        return self.monitor.state_dict()

    @known.setter
    def known(self, state_dict: dict[str, Any]) -> None:
        self.monitor.load_state_dict(state_dict)

    def state(self) -> dict[str, Any]:
        """Return the arguments and what the monitor knows, for the Trainer's checkpoint."""
        arguments = {"every": self._every, "budget": self._budget}
        return {"args": arguments, "attributes": {"known": self.known}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """See how the layers begin, unless a checkpoint says so."""
        if self.monitor.calls == 0:
            self._update(state, **kwargs)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Look at the layers every few steps."""
        if self._every is not None:
            self._update(state, **kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Look at the layers once an epoch."""
        if self._every is None:
            self._update(state, **kwargs)

    def _update(self, state: TrainerState, *, model: nn.Module, **_: object) -> None:
        self.monitor.update(model, warn=state.is_world_process_zero)


def _is_epoch_end(state: TrainerState) -> bool:
    return state.epoch is not None and float(state.epoch).is_integer()
