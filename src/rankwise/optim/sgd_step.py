"""Stage I, the step (METHOD §5): v ← αv − ηg, w ← w + v, in three implementations.

The buffer holds b = −v, so that b ← αb + ηg and w ← w − b. Nothing here writes to a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import _default_to_fused_or_foreach, _device_dtype_check_for_fused

from rankwise.optim.param_groups import Group

# The fused kernel takes 1 − η and subtracts it from 1 again; below this, float32 would lose digits.
_LEAST_FUSED = 1e-8
_PLAIN = (Tensor, torch.nn.Parameter)


class Hyperparameters(NamedTuple):
    """The hyperparameters of one step, as in torch.optim.SGD."""

    rate: float | Tensor  # η
    momentum: float  # α
    dampening: float
    weight_decay: float | Tensor
    nesterov: bool
    maximize: bool
    scale: float  # what torch.amp.GradScaler has multiplied the gradients by

    @property
    def gradient_factor(self) -> float | Tensor:
        """What the gradient is multiplied by when it is added to the buffer."""
        return self.rate * (1 - self.dampening)

    @property
    def can_fuse(self) -> bool:
        """Whether torch's fused kernel can take this step."""
        if not self.momentum:
            return not self.nesterov or self.scale == 1.0
        # with Nesterov momentum the kernel would add the gradient itself, without the rate
        return not self.nesterov and not 0.0 < float(self.rate) < _LEAST_FUSED * self.scale

    @property
    def sign(self) -> float:
        """What turns a gradient as it is stored into the gradient to descend."""
        return (-1.0 if self.maximize else 1.0) / self.scale


class Implementation(Enum):
    """How a step is computed, where the tensors allow it."""

    LOOP = "one tensor after the other"
    FOREACH = "many tensors per kernel"
    FUSED = "many tensors, and the whole step, in one kernel"


class Update(NamedTuple):
    """Tensors that take the same step; without momentum there are no buffers."""

    options: Hyperparameters
    implementation: Implementation
    params: list[Tensor]
    grads: list[Tensor]
    buffers: list[Tensor]

    def split_undamped(self, undamped: Sequence[int]) -> list[Update]:
        """Split the update in two: some tensors without dampening, and the rest."""
        rest = [i for i in range(len(self.params)) if i not in undamped]
        parts = ((undamped, self.options._replace(dampening=0.0)), (rest, self.options))
        return [
            Update(options, self.implementation, *([t[i] for i in indices] for t in self[2:]))
            for indices, options in parts
            if indices
        ]

    def extend(self, other: Update) -> None:
        """Add the tensors of another update."""
        self.params.extend(other.params)
        self.grads.extend(other.grads)
        self.buffers.extend(other.buffers)


def step_groups(
    groups: Sequence[Group], state: Mapping[Tensor, dict[str, Any]], grad_scale: Tensor | None
) -> None:
    """Take one step with every parameter that has a gradient."""
    scale = 1.0 if grad_scale is None else grad_scale.item()
    apply_updates(_make_updates(groups, state, scale))


def _make_updates(
    groups: Sequence[Group], state: Mapping[Tensor, dict[str, Any]], scale: float
) -> Iterator[Update]:
    tracing = torch.compiler.is_compiling()
    for group in groups:
        options = _read_hyperparameters(group, scale, tracing)
        params: list[Tensor] = []
        grads: list[Tensor] = []
        buffers: list[Tensor] = []
        first: list[int] = []
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            if options.momentum:
                buffer = state[param].get("momentum_buffer")
                if buffer is None:
                    first.append(len(params))
                    buffer = state[param]["momentum_buffer"] = torch.zeros_like(param.detach())
                buffers.append(buffer)
            params.append(param)
            grads.append(grad)
        if not params:
            continue
        how = Implementation.LOOP if tracing else _choose_implementation(group, params)
        update = Update(options, how, params, grads, buffers)
        # torch.optim.SGD does not dampen a parameter's first step
        yield from update.split_undamped(first) if first and options.dampening else (update,)


def _read_hyperparameters(group: Group, scale: float, tracing: bool) -> Hyperparameters:
    """Read the hyperparameters of a group: numbers, unless the step is traced or differentiated."""
    rate, decay = group["lr"], group["weight_decay"]
    keep_tensors = tracing or group["differentiable"]
    if isinstance(rate, Tensor):
        rate = rate.squeeze() if keep_tensors else rate.item()
    if isinstance(decay, Tensor):
        decay = decay.squeeze() if keep_tensors else decay.item()
    return Hyperparameters(
        rate,
        group["momentum"],
        group["dampening"],
        decay,
        group["nesterov"],
        group["maximize"],
        scale,
    )


def _choose_implementation(group: Group, params: list[Tensor]) -> Implementation:
    foreach, fused = group["foreach"], group["fused"]
    if group["differentiable"]:
        return Implementation.LOOP
    if fused:
        _check_fused(params)
        return Implementation.FUSED
    if foreach is None and fused is None:
        if params[0].is_cpu:
            return Implementation.FUSED
        _, foreach = _default_to_fused_or_foreach(params, differentiable=False)
    return Implementation.FOREACH if foreach else Implementation.LOOP


def _check_fused(params: Iterable[Tensor]) -> None:
    for param in params:
        _device_dtype_check_for_fused(param)
        if param.grad is not None and param.grad.is_sparse:
            raise RuntimeError("`_fused_sgd` does not support sparse gradients")


def apply_updates(updates: Iterable[Update]) -> None:
    """Take the steps. Updates with the same hyperparameters go to one kernel."""
    fused: Update | None = None  # consecutive updates that take the same step
    foreach: dict[tuple[Hyperparameters, object], list[Update]] = {}
    for update in updates:
        for part in (update,) if _can_fuse_all(update) else _split_by_implementation(update):
            if part.implementation is Implementation.FUSED:
                if fused is not None and _is_same_step(fused, part):
                    fused.extend(part)
                    continue
                if fused is not None:
                    _step_fused(fused)
                fused = part
            elif part.implementation is Implementation.FOREACH:
                # a kernel takes sharded tensors and whole ones, but not both at once
                mesh = getattr(part.grads[0], "device_mesh", None)
                foreach.setdefault((part.options._replace(rate=0.0), mesh), []).append(part)
            else:
                _step_loop(part)
    if fused is not None:
        _step_fused(fused)
    for similar in foreach.values():
        _step_foreach(similar)


def _is_same_step(one: Update, other: Update) -> bool:
    return one.options == other.options and one.params[0].device == other.params[0].device


def _split_by_implementation(update: Update) -> Iterable[Update]:
    """Split an update whose tensors do not all allow the chosen implementation."""
    options, wanted, params, grads, buffers = update
    if wanted is Implementation.LOOP:
        return (update,)
    has_buffer = bool(buffers)
    return [
        Update(
            options,
            _choose_possible(wanted, options, param, grad, buffer),
            [param],
            [grad],
            [buffer][:has_buffer],
        )
        for param, grad, buffer in zip(params, grads, buffers or params, strict=True)
    ]


def _can_fuse_all(update: Update) -> bool:
    """Return whether the fused kernel can take a whole update: the common case, quickly.

    A gradient is on its parameter's device; torch guarantees that.
    """
    if update.implementation is not Implementation.FUSED or not update.options.can_fuse:
        return False
    float32, tensor, plain = torch.float32, Tensor, _PLAIN
    try:
        triples = zip(update.params, update.grads, update.buffers or update.params, strict=True)
        for param, grad, buffer in triples:
            if not (
                param.is_contiguous()
                and grad.is_contiguous()
                and buffer.is_contiguous()
                and grad.dtype is float32
                and buffer.dtype is float32
                and param.is_cpu
                and type(grad) is tensor
                and type(param) in plain
            ):
                return False
    except RuntimeError:  # a sparse gradient has no strides
        return False
    return True


def _choose_possible(
    wanted: Implementation, options: Hyperparameters, param: Tensor, grad: Tensor, buffer: Tensor
) -> Implementation:
    is_fused = wanted is Implementation.FUSED
    if is_fused and options.can_fuse and _can_fuse(param, grad, buffer):
        return Implementation.FUSED
    if grad.is_sparse or (is_fused and param.device.type == "cpu"):
        return Implementation.LOOP
    return Implementation.FOREACH


def _can_fuse(param: Tensor, grad: Tensor, buffer: Tensor) -> bool:
    """Return whether torch's fused kernel is right for these tensors.

    On the CPU it leaves parts of 16-bit tensors unchanged, and walks through memory as if
    parameter, gradient and buffer had the same strides.
    """
    if type(param) not in _PLAIN or type(grad) not in _PLAIN or grad.layout is not torch.strided:
        return False
    if {param.dtype, grad.dtype, buffer.dtype} != {torch.float32} or param.device != grad.device:
        return False
    if param.is_contiguous():
        return grad.is_contiguous() and buffer.is_contiguous()
    return grad.stride() == buffer.stride() == param.stride() and _is_dense(param)


def _step_fused(update: Update) -> None:
    """Take a step in one pass over memory by torch's fused SGD kernel.

    The kernel computes b ← αb + (1 − dampening)·g, w ← w − lr·b.
    """
    options = update.options
    torch._fused_sgd_(
        update.params,
        update.grads,
        update.buffers,
        weight_decay=float(options.weight_decay) * options.scale,
        momentum=options.momentum,
        lr=1.0 if options.momentum else float(options.rate / options.scale),
        dampening=1.0 - float(options.gradient_factor) / options.scale,
        nesterov=options.nesterov,
        maximize=options.maximize,
        is_first_step=False,
    )


def _step_foreach(updates: Sequence[Update]) -> None:
    """Take a step with a few kernels for all tensors at once; only the rates may differ."""
    options = updates[0].options
    params = [tensor for update in updates for tensor in update.params]
    grads = [tensor for update in updates for tensor in update.grads]
    buffers = [tensor for update in updates for tensor in update.buffers]
    each = [update.options for update in updates for _ in update.params]
    factors = [float(o.gradient_factor if o.momentum else o.rate) * o.sign for o in each]
    if options.weight_decay:
        decay = float(options.weight_decay) / options.sign
        changes = torch._foreach_add(grads, params, alpha=decay)
        torch._foreach_mul_(changes, factors)
    else:
        changes = torch._foreach_mul(grads, factors)
    if options.momentum:
        torch._foreach_mul_(buffers, options.momentum)
        torch._foreach_add_(buffers, changes)
        if options.nesterov:
            torch._foreach_add_(changes, buffers, alpha=options.momentum)
        else:
            changes = tuple(buffers)
    torch._foreach_sub_(params, changes)


def _step_loop(update: Update) -> None:
    """Step one parameter after the other: any device, type, layout; differentiable, traceable."""
    options, factor = update.options, update.options.gradient_factor
    if not update.buffers:
        for param, grad in zip(update.params, update.grads, strict=True):
            _add(param, _add_decay(param, grad, options), -options.rate)
        return
    for param, grad, buffer in zip(update.params, update.grads, update.buffers, strict=True):
        if options.nesterov:
            change = _add_decay(param, grad, options)
            _add(buffer.mul_(options.momentum), change, factor)
            # first the sum: a parameter that is changed twice is rounded twice
            ahead = buffer.clone()
            _add(ahead, change, factor / options.momentum)
            _add(param, ahead, -options.momentum)
        else:
            buffer.mul_(options.momentum)
            if isinstance(options.weight_decay, Tensor) or options.weight_decay:
                _add(buffer, param, factor * options.weight_decay)
            _add(buffer, grad, factor * options.sign)
            _add(param, buffer, -1.0)


def _add_decay(param: Tensor, grad: Tensor, options: Hyperparameters) -> Tensor:
    """Return the gradient to descend, with weight decay; a new tensor where it differs."""
    if not isinstance(options.weight_decay, Tensor) and not options.weight_decay:
        return grad if options.sign == 1.0 else grad * options.sign
    return (_copy_for_autograd(param) * options.weight_decay).add_(grad, alpha=options.sign)


def _add(target: Tensor, source: Tensor, factor: float | Tensor) -> None:
    if isinstance(factor, Tensor):
        target.add_(_copy_for_autograd(source) * factor)
    else:
        target.add_(source, alpha=factor)


def _copy_for_autograd(tensor: Tensor) -> Tensor:
    """Return a copy if autograd may need the tensor later: the step changes it in place."""
    return tensor.clone() if torch.is_grad_enabled() else tensor


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the tensor fills memory without gaps or overlaps, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
